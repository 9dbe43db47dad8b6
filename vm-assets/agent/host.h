/* The host as the agent sees it: it greets a host, loses one, and gives what is left to the next. */
#ifndef COPPICE_HOST_H
#define COPPICE_HOST_H

#include <stdbool.h>

#include "frame.h"

/* Greets a host. When sessions are left, it must resume them. */
void host_meet(void);
/* The connection ended. Commands continue; what they did not hand over, the next host gets. */
void host_lose(void);
/*
 * True until the host has resumed. Only RESUME is accepted, and nothing is sent, as if a host received it: time limits are
 * enforced, and output is taken as far as there is room to keep it.
 */
bool host_awaited(void);
/* True between a RESUME and its answer, which waits for the end of what cannot be resumed. No frame is handled. */
bool host_resumes(void);
/* Sends that answer when it is time. Returns true when something moved. */
bool host_pump(void);

/* Handle RESUME, LEAVE and RECEIPT with valid lengths. They never are malformed. */
bool host_resume(const struct frame *frame);
bool host_leave(const struct frame *frame);
bool host_receipt(const struct frame *frame);

#endif
