ALTER TABLE `operations` ADD `parent_id` text;--> statement-breakpoint
ALTER TABLE `operations` ADD `forked_at_event` integer;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `parent_id` text;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `forked_at_event` integer;