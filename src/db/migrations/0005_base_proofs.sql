CREATE TABLE `base_proofs` (
	`layer_id` text NOT NULL,
	`account_id` text NOT NULL,
	`created_at` integer NOT NULL,
	PRIMARY KEY(`layer_id`, `account_id`),
	FOREIGN KEY (`layer_id`) REFERENCES `layers`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`account_id`) REFERENCES `accounts`(`id`) ON UPDATE no action ON DELETE no action
);--> statement-breakpoint
-- What these bases were made of was not verified: they serve the images that stand on them, and no other import.
UPDATE `layers` SET `base_key` = NULL WHERE `base_key` IS NOT NULL;