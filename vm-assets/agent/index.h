/* Sessions of INDEX: a walk over a disk. */
#ifndef COPPICE_INDEX_H
#define COPPICE_INDEX_H

#include <stdbool.h>

#include "frame.h"

/* Handles INDEX. Returns false when the frame is malformed. */
bool index_open(const struct frame *frame);

#endif
