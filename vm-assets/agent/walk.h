/* Writes the index stream of a directory tree; runs in a process of its own. */
#ifndef COPPICE_WALK_H
#define COPPICE_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/*
 * `root`: the directory. `disk`: what it is mounted from, where that may be read beside the kernel, which is much
 * quicker; or -1. `count`: entries, the root included.
 */
bool walk_disk(int root, int disk, int out, uint64_t *count, struct problem *problem);

#endif
