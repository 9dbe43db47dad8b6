/* The payload of EXIT. */
#ifndef COPPICE_EXIT_H
#define COPPICE_EXIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "platform.h"

struct ending {
	bool exited; /* by itself, so that the status and the usage are the command's; otherwise they are its reaper's */
	bool timed_out;
	int status;
	const struct rusage *rusage;
	uint64_t wall_us;
};

/* Writes EXIT_BYTES. */
void exit_write(uint8_t *payload, const struct ending *ending, const struct usage *usage);

#endif
