CREATE TABLE `memory_images` (
	`id` text PRIMARY KEY NOT NULL,
	`sandbox_id` text NOT NULL,
	`account_id` text NOT NULL,
	`image_id` text NOT NULL,
	`size_bytes` integer NOT NULL,
	`memory_bytes` integer NOT NULL,
	`created_at` integer NOT NULL,
	`problem` text,
	FOREIGN KEY (`sandbox_id`) REFERENCES `sandboxes`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`image_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `memory_images_sandbox` ON `memory_images` (`sandbox_id`);--> statement-breakpoint
CREATE INDEX `memory_images_account` ON `memory_images` (`account_id`);--> statement-breakpoint
CREATE INDEX `memory_images_image` ON `memory_images` (`image_id`);--> statement-breakpoint
CREATE INDEX `memory_images_by_time` ON `memory_images` (`created_at`);--> statement-breakpoint
ALTER TABLE `operations` ADD `parent_id` text;--> statement-breakpoint
ALTER TABLE `operations` ADD `forked_at_event` integer;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `parent_id` text;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `forked_at_event` integer;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `pause_memory` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `ending` text;--> statement-breakpoint
ALTER TABLE `sandboxes` ADD `used_at` integer;