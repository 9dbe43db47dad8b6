/* The order of steps. The host may send SYNC, MOUNT, PUT and EXEC without waiting for answers. */
#ifndef COPPICE_STEPS_H
#define COPPICE_STEPS_H

#include <stdbool.h>
#include <stdint.h>

#include "frame.h"
#include "problem.h"
#include "protocol.h"

/*
 * After a failed MOUNT or PUT, later MOUNT, PUT and EXEC fail as well until the next SYNC, so that no command runs without
 * a file that it needs.
 */
void steps_fail(const struct problem *problem);
/* The same for the step of a request, which also gets the ERROR. */
void steps_fail_request(const struct frame *frame, const struct problem *problem);
/* True when the request `session` may continue; otherwise its ERROR was sent. `needs_root`: it needs the merged root. */
bool steps_check(uint32_t session, bool needs_root);
/* True when no session is open; otherwise the request's ERROR was sent. */
bool steps_check_idle(const struct frame *frame);

/* Sends the ERROR for a host of another version. */
void steps_refuse_version(const struct frame *frame, uint32_t version);

/* Handlers of frames with valid lengths. They return false when the frame is malformed. */
bool steps_sync(const struct frame *frame);
bool steps_mount(const struct frame *frame);
bool steps_freeze(const struct frame *frame);
bool steps_hold(const struct frame *frame);
/*
 * True from the answer to a HOLD until the next SYNC, or until the host disconnects. Meanwhile only that SYNC is accepted
 * and nothing is sent, so that the stream of a copied machine is between two frames.
 */
bool steps_held(void);
void steps_end_hold(void);

enum disks_state steps_disks(void);
unsigned steps_layers(void);
/* The disks are unmounted: the next MOUNT may come. */
void steps_forget_disks(void);

#endif
