/*
 * The position of a walk: the directories that it is in, one for each level, and the path of the current entry. A process has
 * only one walk.
 */
#ifndef COPPICE_LEVELS_H
#define COPPICE_LEVELS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>

#include "listing.h"

/* Deeper than any tree that tools can handle: a path of PATH_MAX bytes has at most 2048 components. */
#define LEVELS_DEPTH_MAX 2048
#define LEVELS_PATH_BYTES_MAX 65536
#define LEVELS_OPEN_FLAGS (O_RDONLY | O_NOFOLLOW | O_NOATIME | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

struct level {
	int fd; /* -1: not opened yet */
	size_t path_bytes;
};

extern struct level levels[LEVELS_DEPTH_MAX + 1];
extern struct listing listings[LEVELS_DEPTH_MAX + 1];
extern char levels_path[LEVELS_PATH_BYTES_MAX];

/* Sets levels_path to the entry `name` of the directory of `level`. Returns false when it does not fit. */
bool levels_set_path(const struct level *level, const char *name);

#endif
