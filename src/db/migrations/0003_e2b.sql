CREATE TABLE `e2b_creations` (
	`account_id` text NOT NULL,
	`key` text NOT NULL,
	`body_hash` text NOT NULL,
	`sandbox_id` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`account_id`, `key`),
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `e2b_creations_by_time` ON `e2b_creations` (`created_at`);--> statement-breakpoint
CREATE TABLE `sandbox_records` (
	`sandbox_id` text PRIMARY KEY NOT NULL,
	`template_id` text NOT NULL,
	`alias` text,
	`build_id` text,
	`key_id` text NOT NULL,
	`timeout_seconds` integer NOT NULL,
	`auto_pause_memory` integer NOT NULL,
	`paused_files_only` integer NOT NULL,
	`allow_internet_access` integer,
	`network` text,
	`readiness` text,
	FOREIGN KEY (`sandbox_id`) REFERENCES `sandboxes`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `build_files` (
	`account_id` text NOT NULL,
	`hash` text NOT NULL,
	`file_id` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`account_id`, `hash`),
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`file_id`) REFERENCES `files`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `build_files_file` ON `build_files` (`file_id`);--> statement-breakpoint
CREATE TABLE `build_steps` (
	`account_id` text NOT NULL,
	`key` text NOT NULL,
	`image_id` text NOT NULL,
	`used_at` integer NOT NULL,
	PRIMARY KEY(`account_id`, `key`),
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `build_steps_by_use` ON `build_steps` (`used_at`);--> statement-breakpoint
CREATE INDEX `build_steps_image` ON `build_steps` (`image_id`);--> statement-breakpoint
CREATE TABLE `template_builds` (
	`id` text PRIMARY KEY NOT NULL,
	`template_id` text NOT NULL,
	`status` text NOT NULL,
	`tags` text NOT NULL,
	`image_id` text,
	`config` text NOT NULL,
	`reason` text,
	`log` text NOT NULL,
	`created_at` integer NOT NULL,
	`finished_at` integer,
	FOREIGN KEY (`template_id`) REFERENCES `templates`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `template_builds_by_template` ON `template_builds` (`template_id`,`created_at`);--> statement-breakpoint
CREATE INDEX `template_builds_image` ON `template_builds` (`image_id`);--> statement-breakpoint
CREATE INDEX `template_builds_live` ON `template_builds` (`status`,`created_at`);--> statement-breakpoint
CREATE TABLE `template_tags` (
	`template_id` text NOT NULL,
	`tag` text NOT NULL,
	`build_id` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`template_id`, `tag`),
	FOREIGN KEY (`template_id`) REFERENCES `templates`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`build_id`) REFERENCES `template_builds`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `template_tags_build` ON `template_tags` (`build_id`);--> statement-breakpoint
CREATE TABLE `templates` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`name` text NOT NULL,
	`public` integer NOT NULL,
	`created_at` integer NOT NULL,
	`updated_at` integer NOT NULL,
	`spawn_count` integer DEFAULT 0 NOT NULL,
	`last_spawned_at` integer,
	`sandbox_id` text,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `templates_name` ON `templates` (`account_id`,`name`);--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `boot` text;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `discards_pauses` integer DEFAULT false NOT NULL;