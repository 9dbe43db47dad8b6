/* A child process of the agent that does one piece of work and reports the result. */
#ifndef COPPICE_CHILD_H
#define COPPICE_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "problem.h"
#include "report.h"

struct work {
	const char *name; /* for messages */
	/* Runs in the child, which is an ordinary process. `out`: descriptor of its stream, or -1. `count`: its result. */
	bool (*run)(const struct work *work, int out, uint64_t *count, struct problem *problem);
	/* Forks the child, which may be in another cgroup; -1 with a problem. NULL: fork(2). */
	pid_t (*fork)(struct problem *problem);
	unsigned number; /* arguments of `run` */
	const void *argument;
	int directory; /* descriptor that the child inherits, with the same name; -1: none */
	int input; /* another one; 0: none */
	bool streams; /* true when it has a stream */
};

struct child {
	const char *name;
	pid_t pid; /* 0 when it was reaped */
	int control;
};

/* Initialises a child without anything to close. */
void child_clear(struct child *child);
/* Starts a child. `out`: the child's end of its stream, or -1; the caller closes it. */
bool child_start(struct child *child, const struct work *work, int out, struct problem *problem);
/* Returns true when `pid` was the child. */
bool child_reaped(struct child *child, pid_t pid);
/* The result of a reaped child: true with its count, or false with its problem. */
bool child_outcome(const struct child *child, uint64_t *count, struct problem *problem);
void child_close(struct child *child);

#endif
