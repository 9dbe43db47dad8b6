/* MERGE: one layer out of all that are mounted. */
#ifndef COPPICE_MERGE_H
#define COPPICE_MERGE_H

#include <stdbool.h>

#include "frame.h"

/* Handler of the frame; false: malformed. */
bool merge_open(const struct frame *frame);

#endif
