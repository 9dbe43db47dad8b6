/*
 * Reads the metadata of an EROFS disk without the kernel, which needs an inode, a directory entry and five system calls
 * for each listed file: under emulation, that is many times the cost of reading the disk here. Supports the disks that
 * mkfs.erofs makes for bases: blocks of 4 KiB, without compression, chunks and other disks.
 */
#ifndef COPPICE_EROFS_H
#define COPPICE_EROFS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define EROFS_NAME_BYTES_MAX 255

struct erofs_inode {
	struct stat status; /* as stat(2) reports it, as far as an index contains it */
	bool has_attributes;
	bool is_plain; /* the whole content is at `start` */
	uint64_t start; /* disk offset of the content */
	uint64_t tail; /* disk offset of the content's last block, if it is not plain */
};

/* A position in a directory. */
struct erofs_directory {
	struct erofs_inode inode;
	uint64_t offset; /* a multiple of the block size */
	unsigned entry; /* number of the next entry in that block */
};

struct erofs_entry {
	uint64_t inode;
	char name[EROFS_NAME_BYTES_MAX + 1];
};

/* Selects the disk for the functions below. Returns false when it uses unsupported features. */
bool erofs_open(int fd);
uint64_t erofs_root(void);
/* Returns false and errno on failure. */
bool erofs_inode(uint64_t number, struct erofs_inode *inode);
/* Reads content at `offset`, a multiple of the block size, up to the end of the content or block. Returns -1 and errno on failure. */
ssize_t erofs_read(const struct erofs_inode *inode, uint64_t offset, const uint8_t **bytes);
/* Reads the next entry, except "." and "..". Returns false at the end, or with errno set. */
bool erofs_next(struct erofs_directory *directory, struct erofs_entry *entry);

#endif
