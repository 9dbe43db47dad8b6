/* INDEX: a walk over a disk. */
#ifndef COPPICE_INDEX_H
#define COPPICE_INDEX_H

#include <stdbool.h>

#include "frame.h"

/* Handler of the frame; false: malformed. */
bool index_open(const struct frame *frame);

#endif
