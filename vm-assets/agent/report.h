/* Reports of a child to the agent, over a SOCK_SEQPACKET pair that the command never inherits. */
#ifndef COPPICE_REPORT_H
#define COPPICE_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "problem.h"

enum report_kind { REPORT_NONE, REPORT_FAILED, REPORT_STARTED, REPORT_EXITED, REPORT_DONE };

struct report {
	enum report_kind kind;
	int32_t value; /* STARTED: pid; EXITED: wait status */
	uint64_t count; /* DONE: number of entries */
	struct rusage usage; /* EXITED: of the command and the children that it waited for */
	struct problem problem; /* FAILED */
};

/* Makes a socket pair. The first socket is non-blocking and belongs to the agent. */
bool report_pair(int pair[2]);
void report_send(int fd, const struct report *report);
/* The next report; REPORT_NONE when there is none now. */
enum report_kind report_receive(int fd, struct report *report);

#endif
