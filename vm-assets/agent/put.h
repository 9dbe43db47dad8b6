/* Sessions of PUT: writing a file of the host to the merged root. */
#ifndef COPPICE_PUT_H
#define COPPICE_PUT_H

#include <stdbool.h>

#include "frame.h"

/* Handles PUT_OPEN. Returns false when the frame is malformed. */
bool put_open(const struct frame *frame);

#endif
