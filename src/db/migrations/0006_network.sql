ALTER TABLE `history` ADD `network` integer DEFAULT false NOT NULL;--> statement-breakpoint
ALTER TABLE `operations` ADD `network` text;