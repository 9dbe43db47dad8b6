/* Writes the index stream of a directory tree. Runs in a process of its own. */
#ifndef COPPICE_WALK_H
#define COPPICE_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/*
 * `root`: the directory. `disk`: the disk that it is mounted from, which is faster to read directly; -1 for none. `count`:
 * number of entries, including the root.
 */
bool walk_disk(int root, int disk, int out, uint64_t *count, struct problem *problem);

#endif
