/*
 * The steps of a walk that reads an EROFS disk directly, without the kernel. Under emulation, the walk then takes a sixth of
 * the time. Only walk.c calls these functions; without them it would walk through the kernel alone.
 */
#ifndef COPPICE_EMULATION_DISK_WALK_H
#define COPPICE_EMULATION_DISK_WALK_H

#include <stdbool.h>

#include "../problem.h"

/* Whether the disk can be read. Then the walk starts at its directory `upper`, like below the mount. `disk`: -1 for none. */
bool disk_walk_open(int disk);
/* Starts the directory at `depth`, which disk_walk_visit has visited. */
void disk_walk_enter(unsigned depth);
/* The next name in the directory at `depth`; NULL at the end, or with errno set. Valid until the next call. */
const char *disk_walk_next(unsigned depth);

enum disk_visit {
	DISK_VISIT_DONE, /* wrote the record */
	DISK_VISIT_FAILED, /* set the problem */
	DISK_VISIT_KERNEL /* the kernel must read the entry's attributes; the directory at `depth` is open for that */
};

/* Visits the entry that disk_walk_next has returned. */
enum disk_visit disk_walk_visit(unsigned depth, bool *is_directory, struct problem *problem);

#endif
