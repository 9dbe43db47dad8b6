/* FLUSH and QUIESCE: bringing the present state of the scratch to its disk, while commands run. */
#ifndef COPPICE_QUIESCE_H
#define COPPICE_QUIESCE_H

#include <stdbool.h>

#include "frame.h"

/* Handle FLUSH and QUIESCE. Return false when the frame is malformed. */
bool quiesce_flush(const struct frame *frame);
bool quiesce_open(const struct frame *frame);
/* True while the scratch is quiesced or about to be. Writers block then, so the agent must not write. */
bool quiesce_alive(void);
/* Thaws the scratch for a process that must be killed, because a blocked writer cannot die. */
void quiesce_cancel(void);

#endif
