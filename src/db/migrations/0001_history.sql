CREATE TABLE `history` (
	`image_id` text PRIMARY KEY NOT NULL,
	`parent_id` text,
	`operation_id` text NOT NULL,
	`command` text,
	`command_cut` integer DEFAULT false NOT NULL,
	`exit_code` integer,
	`timed_out` integer DEFAULT false NOT NULL,
	`source` text,
	`digest` text,
	`size_bytes` integer NOT NULL,
	`started_at` integer,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`parent_id`) REFERENCES `history`(`image_id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `history_parent` ON `history` (`parent_id`);--> statement-breakpoint
PRAGMA foreign_keys=OFF;--> statement-breakpoint
CREATE TABLE `__new_images` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`parent_id` text,
	`operation_id` text,
	`layer_id` text NOT NULL,
	`digest` text,
	`size_bytes` integer NOT NULL,
	`tagged` integer DEFAULT false NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`parent_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE set null,
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE set null,
	FOREIGN KEY (`layer_id`) REFERENCES `layers`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
INSERT INTO `__new_images`("id", "account_id", "parent_id", "operation_id", "layer_id", "digest", "size_bytes", "tagged", "created_at") SELECT "id", "account_id", "parent_id", "operation_id", "layer_id", "digest", "size_bytes", "tagged", "created_at" FROM `images`;--> statement-breakpoint
DROP TABLE `images`;--> statement-breakpoint
ALTER TABLE `__new_images` RENAME TO `images`;--> statement-breakpoint
PRAGMA foreign_keys=ON;--> statement-breakpoint
CREATE INDEX `images_by_time` ON `images` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `images_by_tagged` ON `images` (`account_id`,`tagged`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `images_untagged` ON `images` (`tagged`,`created_at`);--> statement-breakpoint
CREATE INDEX `images_layer` ON `images` (`layer_id`);--> statement-breakpoint
CREATE INDEX `images_parent` ON `images` (`parent_id`);--> statement-breakpoint
CREATE INDEX `images_operation` ON `images` (`operation_id`);--> statement-breakpoint
CREATE TABLE `__new_operations` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`kind` text NOT NULL,
	`status` text NOT NULL,
	`created_at` integer NOT NULL,
	`started_at` integer,
	`finished_at` integer,
	`cancel_requested_at` integer,
	`image_id` text,
	`had_credentials` integer DEFAULT false NOT NULL,
	`error` text,
	`result` text,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`image_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE set null,
	CONSTRAINT "operations_finished_when_terminal" CHECK(("__new_operations"."finished_at" is null) = ("__new_operations"."status" in ('PENDING', 'EXECUTING')))
);
--> statement-breakpoint
INSERT INTO `__new_operations`("id", "account_id", "kind", "status", "created_at", "started_at", "finished_at", "cancel_requested_at", "image_id", "had_credentials", "error", "result") SELECT "id", "account_id", "kind", "status", "created_at", "started_at", "finished_at", "cancel_requested_at", "image_id", "had_credentials", "error", "result" FROM `operations`;--> statement-breakpoint
DROP TABLE `operations`;--> statement-breakpoint
ALTER TABLE `__new_operations` RENAME TO `operations`;--> statement-breakpoint
CREATE INDEX `operations_by_time` ON `operations` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_by_status` ON `operations` (`account_id`,`status`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_by_kind` ON `operations` (`account_id`,`kind`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_by_status_kind` ON `operations` (`account_id`,`status`,`kind`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_live` ON `operations` (`status`,`created_at`,`id`) WHERE "operations"."finished_at" is null;--> statement-breakpoint
CREATE INDEX `operations_finished` ON `operations` (`finished_at`) WHERE "operations"."finished_at" is not null;--> statement-breakpoint
CREATE INDEX `operations_image` ON `operations` (`image_id`);--> statement-breakpoint
INSERT INTO `history`("image_id", "parent_id", "operation_id", "digest", "size_bytes", "started_at", "created_at") SELECT `images`.`id`, `images`.`parent_id`, coalesce(`images`.`operation_id`, `images`.`id`), `images`.`digest`, `images`.`size_bytes`, `operations`.`started_at`, `images`.`created_at` FROM `images` LEFT JOIN `operations` ON `operations`.`id` = `images`.`operation_id`;
