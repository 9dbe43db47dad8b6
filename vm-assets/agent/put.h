/* PUT: a file of the host into the merged root. */
#ifndef COPPICE_PUT_H
#define COPPICE_PUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "frame.h"

struct session;

struct put {
	int fd;
	uint64_t remaining;
	char path[PATH_MAX];
};

/* Handlers of frames; false: malformed. */
bool put_open(const struct frame *frame);
bool put_data(struct session *session, const struct frame *frame);
void put_close(struct put *put);

#endif
