DROP INDEX `history_parent`;--> statement-breakpoint
CREATE INDEX `history_parent` ON `history` (`parent_id`,`created_at`,`image_id`);