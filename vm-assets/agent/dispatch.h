/* Frames of the host to those who answer them. */
#ifndef COPPICE_DISPATCH_H
#define COPPICE_DISPATCH_H

#include <stdbool.h>

#include "frame.h"

/* False: malformed. */
bool dispatch(const struct frame *frame);

#endif
