/* PUT: a file of the host into the merged root. */
#ifndef COPPICE_PUT_H
#define COPPICE_PUT_H

#include <stdbool.h>

#include "frame.h"

/* Handler of the frame that opens; false: malformed. */
bool put_open(const struct frame *frame);

#endif
