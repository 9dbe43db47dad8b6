/* FLUSH and QUIESCE: the scratch on the disk as it is now, while commands run. */
#ifndef COPPICE_QUIESCE_H
#define COPPICE_QUIESCE_H

#include <stdbool.h>

#include "frame.h"

/* Handlers of frames; false: malformed. */
bool quiesce_flush(const struct frame *frame);
bool quiesce_open(const struct frame *frame);
/* True while the scratch stands still or is about to: whoever writes to it waits, which the agent must not. */
bool quiesce_alive(void);
/* Lets writes go on, for a process that is to be killed: in the middle of a write it could not die. */
void quiesce_cancel(void);

#endif
