/*
 * RELEASE: lets go of all disks, so that a clone that has rehearsed can wait for a run. Emulated processors translate
 * code when they first execute it; no other clone rehearses.
 */
#ifndef COPPICE_EMULATION_RELEASE_H
#define COPPICE_EMULATION_RELEASE_H

#include <stdbool.h>

#include "../frame.h"

/* Handler of the frame; false: malformed. */
bool release_disks(const struct frame *frame);

#endif
