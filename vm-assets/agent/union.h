/* Makes one layer of many; runs in a process of its own. */
#ifndef COPPICE_UNION_H
#define COPPICE_UNION_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/*
 * Fills the empty /upper of the scratch with the layer that stands in for the layers 0 to `count`-1 on top of any
 * others. `entries`: what it made, the root included.
 */
bool union_layers(unsigned count, uint64_t *entries, struct problem *problem);

#endif
