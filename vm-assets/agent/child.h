/* A child of the agent that does one piece of work and reports how it went. */
#ifndef COPPICE_CHILD_H
#define COPPICE_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "problem.h"
#include "report.h"

struct work {
	const char *name; /* for messages */
	/* Runs in the child, an ordinary process. `out`: where its stream goes, or -1. `count`: what it reports. */
	bool (*run)(const struct work *work, int out, uint64_t *count, struct problem *problem);
	unsigned number; /* for the work's own use */
	int directory; /* given to the child; -1: none */
	bool streams; /* it has a stream */
};

struct child {
	const char *name;
	pid_t pid; /* 0: reaped */
	int control;
};

/* No child yet: nothing to close. */
void child_clear(struct child *child);
/* `out`: the child's end of its stream, or -1; the caller closes it. */
bool child_start(struct child *child, const struct work *work, int out, struct problem *problem);
/* True when `pid` was the child. */
bool child_reaped(struct child *child, pid_t pid);
/* What a child that was reaped had reported: true with its count, or false with a problem. */
bool child_outcome(const struct child *child, uint64_t *count, struct problem *problem);
void child_close(struct child *child);

#endif
