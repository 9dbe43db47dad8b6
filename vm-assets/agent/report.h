/* What a child of the agent tells it, over a SOCK_SEQPACKET pair that the command never holds. */
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
	uint64_t count; /* DONE: entries */
	struct rusage usage; /* EXITED: of the command and of the children that it waited for */
	struct problem problem; /* FAILED */
};

/* A pair of sockets, the first non-blocking and the agent's. */
bool report_pair(int pair[2]);
void report_send(int fd, const struct report *report);
/* The next report, NONE when there is none now. */
enum report_kind report_receive(int fd, struct report *report);

#endif
