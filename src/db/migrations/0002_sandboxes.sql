CREATE TABLE `sandbox_states` (
	`sandbox_id` text NOT NULL,
	`seq` integer NOT NULL,
	`image_id` text NOT NULL,
	`parent_seq` integer,
	`reason` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`sandbox_id`, `seq`),
	FOREIGN KEY (`sandbox_id`) REFERENCES `sandboxes`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`image_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `sandbox_states_image` ON `sandbox_states` (`image_id`);--> statement-breakpoint
CREATE INDEX `sandbox_states_parent` ON `sandbox_states` (`sandbox_id`,`parent_seq`);--> statement-breakpoint
CREATE TABLE `sandboxes` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`name` text NOT NULL,
	`image_id` text,
	`head_id` text,
	`head_seq` integer NOT NULL,
	`state` text NOT NULL,
	`operation_id` text,
	`timeout_ms` integer NOT NULL,
	`ends_at` integer,
	`idle_timeout_ms` integer,
	`on_timeout` text NOT NULL,
	`auto_resume` integer NOT NULL,
	`env` text NOT NULL,
	`env_names` text NOT NULL,
	`cwd` text,
	`user` text,
	`network` text,
	`resources` text NOT NULL,
	`metadata` text NOT NULL,
	`public_ports` text NOT NULL,
	`spid_last` integer NOT NULL,
	`created_at` integer NOT NULL,
	`state_at` integer NOT NULL,
	`ended_at` integer,
	`error` text,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`image_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE set null,
	FOREIGN KEY (`head_id`) REFERENCES `images`(`id`) ON UPDATE no action ON DELETE set null,
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE set null,
	CONSTRAINT "sandboxes_ended_when_ended" CHECK(("sandboxes"."ended_at" is null) = ("sandboxes"."state" <> 'ended'))
);
--> statement-breakpoint
CREATE UNIQUE INDEX `sandboxes_name` ON `sandboxes` (`account_id`,`name`) WHERE "sandboxes"."ended_at" is null;--> statement-breakpoint
CREATE INDEX `sandboxes_by_time` ON `sandboxes` (`account_id`,`created_at`,`id`);--> statement-breakpoint
CREATE INDEX `sandboxes_live` ON `sandboxes` (`account_id`,`created_at`,`id`) WHERE "sandboxes"."ended_at" is null;--> statement-breakpoint
CREATE INDEX `sandboxes_by_deadline` ON `sandboxes` (`ends_at`) WHERE "sandboxes"."ends_at" is not null;--> statement-breakpoint
CREATE INDEX `sandboxes_ended` ON `sandboxes` (`ended_at`) WHERE "sandboxes"."ended_at" is not null;--> statement-breakpoint
CREATE INDEX `sandboxes_image` ON `sandboxes` (`image_id`);--> statement-breakpoint
CREATE INDEX `sandboxes_head` ON `sandboxes` (`head_id`);--> statement-breakpoint
CREATE INDEX `sandboxes_operation` ON `sandboxes` (`operation_id`);