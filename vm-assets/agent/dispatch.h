/* Passes frames of the host to their handlers. */
#ifndef COPPICE_DISPATCH_H
#define COPPICE_DISPATCH_H

#include <stdbool.h>

#include "frame.h"

/* Returns false when the frame is malformed. */
bool dispatch(const struct frame *frame);

#endif
