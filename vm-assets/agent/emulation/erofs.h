/*
 * Reads the metadata of an EROFS disk without the kernel, which makes an inode, a directory entry and five system
 * calls of every file that is listed: emulated, that is many times what it costs to read them here. Known is what
 * mkfs.erofs makes of a base: blocks of 4 KiB, and nothing compressed, in chunks or on another disk.
 */
#ifndef COPPICE_EROFS_H
#define COPPICE_EROFS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define EROFS_NAME_BYTES_MAX 255

struct erofs_inode {
	struct stat status; /* what stat(2) says, as far as an index has it */
	bool has_attributes;
	bool is_plain; /* all the content is at `start` */
	uint64_t start; /* of the content on the disk */
	uint64_t tail; /* where the last block of the content is instead, when it is not plain */
};

/* A place in a directory. */
struct erofs_directory {
	struct erofs_inode inode;
	uint64_t offset; /* a multiple of the size of a block */
	unsigned entry; /* the next one in that block */
};

struct erofs_entry {
	uint64_t inode;
	char name[EROFS_NAME_BYTES_MAX + 1];
};

/* Takes a disk into use, for all functions below; false when it holds nothing that they know. */
bool erofs_open(int fd);
uint64_t erofs_root(void);
/* False and errno. */
bool erofs_inode(uint64_t number, struct erofs_inode *inode);
/* The content from `offset`, a multiple of the size of a block, to the end or that of the block; -1 and errno. */
ssize_t erofs_read(const struct erofs_inode *inode, uint64_t offset, const uint8_t **bytes);
/* The next entry but "." and ".."; false at the end, or with errno set. */
bool erofs_next(struct erofs_directory *directory, struct erofs_entry *entry);

#endif
