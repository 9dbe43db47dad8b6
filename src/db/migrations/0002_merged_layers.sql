CREATE TABLE `merged_layers` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`below_id` text NOT NULL,
	`top_id` text NOT NULL,
	`size_bytes` integer NOT NULL,
	`entry_count` integer NOT NULL,
	`created_at` integer NOT NULL,
	`last_used_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`below_id`) REFERENCES `layers`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`top_id`) REFERENCES `layers`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `merged_layers_run` ON `merged_layers` (`top_id`,`below_id`,`account_id`);--> statement-breakpoint
CREATE INDEX `merged_layers_below` ON `merged_layers` (`below_id`);--> statement-breakpoint
CREATE INDEX `merged_layers_by_use` ON `merged_layers` (`account_id`,`last_used_at`);