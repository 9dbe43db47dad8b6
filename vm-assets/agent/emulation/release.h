/*
 * RELEASE: unmounts and forgets all disks, so that a clone can wait for a run after its rehearsal. Only emulated clones
 * rehearse, because emulated processors translate code when they first execute it.
 */
#ifndef COPPICE_EMULATION_RELEASE_H
#define COPPICE_EMULATION_RELEASE_H

#include <stdbool.h>

#include "../frame.h"

/* Handles RELEASE. Returns false when the frame is malformed. */
bool release_disks(const struct frame *frame);

#endif
