DROP INDEX `tags_image`;--> statement-breakpoint
ALTER TABLE `tags` ADD `set_at` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE `tags` ADD `shown` integer DEFAULT true NOT NULL;--> statement-breakpoint
CREATE UNIQUE INDEX `tags_shown` ON `tags` (`image_id`) WHERE "tags"."shown" = 1;--> statement-breakpoint
CREATE INDEX `tags_image` ON `tags` (`image_id`,`set_at`);--> statement-breakpoint
ALTER TABLE `files` ADD `uploaded_at` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
UPDATE `files` SET `uploaded_at` = `created_at`;--> statement-breakpoint
CREATE INDEX `files_by_upload` ON `files` (`account_id`,`uploaded_at`,`id`);--> statement-breakpoint
ALTER TABLE `images` ADD `variables` text;--> statement-breakpoint
ALTER TABLE `images` ADD `cwd` text;
