DROP INDEX `images_layer`;--> statement-breakpoint
CREATE INDEX `images_layer` ON `images` (`layer_id`,`account_id`);