/* Sessions of MERGE: merging all mounted layers into one. */
#ifndef COPPICE_MERGE_H
#define COPPICE_MERGE_H

#include <stdbool.h>

#include "frame.h"

/* Handles MERGE. Returns false when the frame is malformed. */
bool merge_open(const struct frame *frame);

#endif
