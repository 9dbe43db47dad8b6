/* Where the bytes of a file lie on its disk. */
#ifndef COPPICE_EXTENTS_H
#define COPPICE_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

struct extents {
	int fd; /* a regular file */
	uint64_t size; /* of the file: nothing beyond is listed */
	uint64_t next; /* first logical byte that was not looked at */
	bool done;
};

/*
 * Appends the next batch of written extents to the record and counts them; sets `done` after the last.
 * Fails for extents whose bytes are not plainly on the disk.
 */
bool extents_append(struct extents *extents, uint32_t *count, struct problem *problem);
/* Appends one extent that is known; false when the record is full. */
bool extents_append_one(uint64_t logical, uint64_t physical, uint64_t length);

#endif
