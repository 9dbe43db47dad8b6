/* Merges layers into one. Runs in a process of its own. */
#ifndef COPPICE_UNION_H
#define COPPICE_UNION_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/*
 * Fills the empty /upper of the scratch with a layer that replaces the layers 0 to `count`-1 on top of any others.
 * `entries`: number of created entries, including the root.
 */
bool union_layers(unsigned count, uint64_t *entries, struct problem *problem);

#endif
