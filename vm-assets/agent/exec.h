/* EXEC: a command below its reaper, its streams, its deadline and its end. */
#ifndef COPPICE_EXEC_H
#define COPPICE_EXEC_H

#include <stdbool.h>

#include "frame.h"

/* Handler of the frame that opens; false: malformed. */
bool exec_open(const struct frame *frame);

#endif
