CREATE TABLE `accounts` (
	`id` text PRIMARY KEY NOT NULL,
	`created_at` integer NOT NULL
);
--> statement-breakpoint
CREATE TABLE `base_proofs` (
	`layer_id` text NOT NULL,
	`account_id` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`layer_id`, `account_id`),
	FOREIGN KEY (`layer_id`) REFERENCES `layers`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE TABLE `files` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`sha256` text NOT NULL,
	`size_bytes` integer NOT NULL,
	`created_at` integer NOT NULL,
	`uploaded_at` integer DEFAULT 0 NOT NULL,
	`last_used_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `files_content` ON `files` (`account_id`,`sha256`);--> statement-breakpoint
CREATE INDEX `files_by_upload` ON `files` (`account_id`,`uploaded_at`,`id`);--> statement-breakpoint
CREATE INDEX `files_blob` ON `files` (`sha256`);--> statement-breakpoint
CREATE INDEX `files_last_used` ON `files` (`last_used_at`);--> statement-breakpoint
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
	`network` integer DEFAULT false NOT NULL,
	FOREIGN KEY (`parent_id`) REFERENCES `history`(`image_id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `history_parent` ON `history` (`parent_id`,`created_at`,`image_id`);--> statement-breakpoint
CREATE TABLE `images` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`parent_id` text,
	`operation_id` text,
	`layer_id` text NOT NULL,
	`digest` text,
	`size_bytes` integer NOT NULL,
	`variables` text,
	`cwd` text,
	`tagged` integer DEFAULT false NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`parent_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE set null,
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE set null,
	FOREIGN KEY (`layer_id`) REFERENCES `layers`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `images_by_time` ON `images` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `images_by_tagged` ON `images` (`account_id`,`tagged`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `images_untagged` ON `images` (`tagged`,`created_at`);--> statement-breakpoint
CREATE INDEX `images_layer` ON `images` (`layer_id`,`account_id`);--> statement-breakpoint
CREATE INDEX `images_parent` ON `images` (`parent_id`);--> statement-breakpoint
CREATE INDEX `images_operation` ON `images` (`operation_id`);--> statement-breakpoint
CREATE TABLE `layers` (
	`id` text PRIMARY KEY NOT NULL,
	`parent_id` text,
	`format` text NOT NULL,
	`base_key` text,
	`size_bytes` integer NOT NULL,
	`disk_bytes` integer NOT NULL,
	`entry_count` integer NOT NULL,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`parent_id`) REFERENCES `layers`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE UNIQUE INDEX `layers_base_key` ON `layers` (`base_key`) WHERE "layers"."base_key" is not null;--> statement-breakpoint
CREATE INDEX `layers_parent` ON `layers` (`parent_id`);--> statement-breakpoint
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
CREATE INDEX `merged_layers_by_use` ON `merged_layers` (`account_id`,`last_used_at`);--> statement-breakpoint
CREATE TABLE `operation_files` (
	`operation_id` text NOT NULL,
	`file_id` text NOT NULL,
	PRIMARY KEY(`operation_id`, `file_id`),
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`file_id`) REFERENCES `files`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `operation_files_file` ON `operation_files` (`file_id`);--> statement-breakpoint
CREATE TABLE `operation_requests` (
	`operation_id` text PRIMARY KEY NOT NULL,
	`body` text NOT NULL,
	`resources` text,
	`size_bytes` integer DEFAULT 0 NOT NULL,
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `operation_secrets` (
	`operation_id` text PRIMARY KEY NOT NULL,
	`body` text NOT NULL,
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE TABLE `operations` (
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
	`network` text,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`image_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE set null,
	CONSTRAINT "operations_finished_when_terminal" CHECK(("operations"."finished_at" is null) = ("operations"."status" in ('PENDING', 'EXECUTING')))
);
--> statement-breakpoint
CREATE INDEX `operations_by_time` ON `operations` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_by_status` ON `operations` (`account_id`,`status`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_by_kind` ON `operations` (`account_id`,`kind`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_by_status_kind` ON `operations` (`account_id`,`status`,`kind`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `operations_live` ON `operations` (`status`,`created_at`,`id`) WHERE "operations"."finished_at" is null;--> statement-breakpoint
CREATE INDEX `operations_finished` ON `operations` (`finished_at`) WHERE "operations"."finished_at" is not null;--> statement-breakpoint
CREATE INDEX `operations_image` ON `operations` (`image_id`,`finished_at`,`created_at`);--> statement-breakpoint
CREATE TABLE `tags` (
	`account_id` text NOT NULL,
	`name` text NOT NULL,
	`image_id` text NOT NULL,
	`set_at` integer DEFAULT 0 NOT NULL,
	`shown` integer DEFAULT true NOT NULL,
	PRIMARY KEY(`account_id`, `name`),
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`image_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `tags_image` ON `tags` (`image_id`,`set_at`);--> statement-breakpoint
CREATE UNIQUE INDEX `tags_shown` ON `tags` (`image_id`) WHERE "tags"."shown" = 1;--> statement-breakpoint
CREATE TABLE `tokens` (
	`jti` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`scopes` text NOT NULL,
	`key_id` text NOT NULL,
	`issued_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`revoked_at` integer,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `tokens_by_account` ON `tokens` (`account_id`,`issued_at`);