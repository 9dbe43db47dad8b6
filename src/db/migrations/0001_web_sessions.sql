CREATE TABLE `web_sessions` (
	`id` text PRIMARY KEY NOT NULL,
	`token_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`last_used_at` integer NOT NULL,
	FOREIGN KEY (`token_id`) REFERENCES `tokens`(`jti`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
CREATE INDEX `web_sessions_by_token` ON `web_sessions` (`token_id`,`last_used_at`);--> statement-breakpoint
CREATE INDEX `web_sessions_by_use` ON `web_sessions` (`last_used_at`);