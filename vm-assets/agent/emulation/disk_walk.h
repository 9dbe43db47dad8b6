/*
 * The steps of a walk that reads an EROFS disk itself, without the kernel: emulated, the walk takes a sixth of the time.
 * Only the walk itself calls this, so that it walks by the kernel alone where this is taken out.
 */
#ifndef COPPICE_EMULATION_DISK_WALK_H
#define COPPICE_EMULATION_DISK_WALK_H

#include <stdbool.h>

#include "../problem.h"

/* Whether the disk can be read: then the walk begins at its directory `upper`, as below the mount. -1: there is none. */
bool disk_walk_open(int disk);
/* Begins the directory at `depth`, which disk_walk_visit came by. */
void disk_walk_enter(unsigned depth);
/* The next name in the directory at `depth`; NULL at the end, or with errno set. Good until the next call. */
const char *disk_walk_next(unsigned depth);

enum disk_visit {
	DISK_VISIT_DONE, /* the record is written */
	DISK_VISIT_FAILED, /* and why is in the problem */
	DISK_VISIT_KERNEL /* the entry has attributes, which the kernel is to read: the directory at `depth` is open for that */
};

/* Visits the entry that disk_walk_next gave last. */
enum disk_visit disk_walk_visit(unsigned depth, bool *is_directory, struct problem *problem);

#endif
