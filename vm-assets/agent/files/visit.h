/*
 * A visitor: the process of one FILE_OPEN. It enters the mounts of the target, becomes the user, and then works with the rights
 * of that user. It is in no pid namespace of the guest, which therefore cannot trace or signal it.
 */
#ifndef COPPICE_VISIT_H
#define COPPICE_VISIT_H

#include <signal.h>

#include "../child.h"

/* Makes a watch that is ready send what happened so far, and then a record that says so. */
#define WATCH_SYNC_SIGNAL SIGUSR1

/* For `struct work`: `argument` is the payload of the frame, `number` its length, `directory` a pidfd of the target's reaper. */
bool visit(const struct work *work, int out, uint64_t *count, struct problem *problem);

#endif
