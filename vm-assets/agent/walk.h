/* Writes the index stream of a directory tree; runs in a process of its own. */
#ifndef COPPICE_WALK_H
#define COPPICE_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/* `count`: entries, the root included. */
bool walk_disk(int root, int out, uint64_t *count, struct problem *problem);

#endif
