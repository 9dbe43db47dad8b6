CREATE TABLE `operation_files` (
	`operation_id` text NOT NULL,
	`file_id` text NOT NULL,
	PRIMARY KEY(`operation_id`, `file_id`),
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE cascade,
	FOREIGN KEY (`file_id`) REFERENCES `files`(`id`) ON UPDATE no action ON DELETE no action
);
--> statement-breakpoint
CREATE INDEX `operation_files_file` ON `operation_files` (`file_id`);--> statement-breakpoint
CREATE TABLE `operation_secrets` (
	`operation_id` text PRIMARY KEY NOT NULL,
	`body` text NOT NULL,
	FOREIGN KEY (`operation_id`) REFERENCES `operations`(`id`) ON UPDATE no action ON DELETE cascade
);
--> statement-breakpoint
ALTER TABLE `operation_requests` ADD `resources` text;--> statement-breakpoint
ALTER TABLE `operation_requests` ADD `size_bytes` integer DEFAULT 0 NOT NULL;--> statement-breakpoint
UPDATE `operation_requests` SET `size_bytes` = length(CAST(`body` AS BLOB)), `resources` = json_extract(`body`, '$.resources');--> statement-breakpoint
INSERT INTO `operation_secrets` (`operation_id`, `body`)
	SELECT `operation_id`, json_object('env', json(json_extract(`body`, '$.env')), 'stdin', json_extract(`body`, '$.stdin'), 'stdinFileBytes', NULL)
	FROM `operation_requests` WHERE json_type(`body`, '$.env') = 'object';--> statement-breakpoint
INSERT INTO `operation_files` (`operation_id`, `file_id`)
	SELECT DISTINCT `operation_id`, json_extract(placed.value, '$.fileId')
	FROM `operation_requests`, json_each(`operation_requests`.`body`, '$.files') AS placed
	WHERE json_extract(placed.value, '$.fileId') IN (SELECT `id` FROM `files`);--> statement-breakpoint
UPDATE `operation_requests` SET `body` = json_object(
	'source', json(CASE WHEN json_array_length(`body`, '$.files') > 0
		THEN json_object('kind', 'archive', 'fileId', json_extract(`body`, '$.files[0].fileId'), 'sha256', json_extract(`body`, '$.files[0].sha256'))
		ELSE json_object('kind', 'registry', 'reference', json_extract(`body`, '$.registry')) END),
	'tag', json_extract(`body`, '$.tag'),
	'timeoutSeconds', json_extract(`body`, '$.timeoutSeconds'))
	WHERE json_type(`body`, '$.registry') = 'text';--> statement-breakpoint
UPDATE `operation_requests` SET `body` = json_remove(`body`, '$.env', '$.stdin', '$.resources');
