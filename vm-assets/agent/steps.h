/* The order of steps: SYNC, MOUNT, PUT..., EXEC may be sent without waiting for answers. */
#ifndef COPPICE_STEPS_H
#define COPPICE_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "frame.h"
#include "problem.h"

/*
 * A failed MOUNT or PUT makes the MOUNT, PUT and EXEC behind it fail too, until the next SYNC: a command
 * must not run without a file that it was promised.
 */
void steps_fail(const struct problem *problem);
/* The same for the step that a frame asks for, whose ERROR it sends. */
void steps_fail_request(const struct frame *frame, const struct problem *problem);
/* True when `session` may go on; else its ERROR has been sent. `mounted`: the merged root is needed. */
bool steps_check(uint32_t session, bool needs_root);
/* True when no session is alive; else the ERROR of the frame has been sent. */
bool steps_check_idle(const struct frame *frame);

/* Handlers of frames whose length fits; false: malformed. */
bool steps_sync(const struct frame *frame);
bool steps_mount(const struct frame *frame);
bool steps_freeze(const struct frame *frame);
bool steps_hold(const struct frame *frame);
/*
 * True from an answered HOLD until the next SYNC, or until the host is lost: nothing but that SYNC is taken, and nothing
 * is sent, so that a copy of the machine finds the stream between two frames.
 */
bool steps_held(void);
void steps_lose_host(void);

/* How far the disks are. */
enum disks { DISKS_NONE, DISKS_LAYERS, DISKS_ROOT, DISKS_BARE, DISKS_FROZEN };
enum disks steps_disks(void);
unsigned steps_layers(void);
/* The disks are unmounted: the next MOUNT may come. */
void steps_forget_disks(void);

#endif
