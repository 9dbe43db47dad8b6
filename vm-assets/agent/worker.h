/* Sessions whose work a child does; the loop relays what it writes, and answers what it reports. */
#ifndef COPPICE_WORKER_H
#define COPPICE_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

struct work {
	const char *name; /* for messages */
	/*
	 * Runs in the child, an ordinary process. `directory`: as below. `out`: where its stream goes, or -1. `count`: the
	 * number that DONE carries.
	 */
	bool (*run)(const struct work *work, int out, uint64_t *count, struct problem *problem);
	unsigned number; /* for the work's own use */
	int directory; /* given to the child and closed here; -1: none */
	bool streams; /* it has a stream, which is sent as standard output */
};

/* Opens session `id` and starts the child; what fails is answered. */
void worker_open(uint32_t id, const struct work *work);

#endif
