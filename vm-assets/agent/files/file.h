/*
 * Sessions of FILE_OPEN: each is one operation on the files of a running command, in a process of its own (a visitor). The agent
 * itself touches no file of a guest, so none can block it.
 */
#ifndef COPPICE_FILE_H
#define COPPICE_FILE_H

#include <stdbool.h>

#include "../frame.h"

/* Handles FILE_OPEN. Returns false when the frame is malformed. */
bool file_open(const struct frame *frame);

#endif
