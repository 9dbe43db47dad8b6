/* Locates the bytes of a file on its disk. */
#ifndef COPPICE_EXTENTS_H
#define COPPICE_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

struct extents {
	int fd; /* a regular file */
	uint64_t size; /* size of the file; extents end there */
	uint64_t next; /* first byte that was not mapped yet */
	bool done;
};

/*
 * Appends the next batch of written extents to the record and counts them. Sets `done` after the last batch. Fails for
 * extents whose bytes are not stored plainly on the disk.
 */
bool extents_append(struct extents *extents, uint32_t *count, struct problem *problem);
/* Appends one given extent. Returns false when the record is full. */
bool extents_append_one(uint64_t logical, uint64_t physical, uint64_t length);

#endif
