/* Byte streams under flow control: a pipe to the host (outflow), and the host to a pipe (inflow). */
#ifndef COPPICE_FLOW_H
#define COPPICE_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

struct outflow {
	int fd; /* read end, non-blocking; -1 when ended */
	uint32_t stream;
	uint32_t credit; /* bytes that the host still takes */
	uint64_t hold_ns; /* not read before this time, so that small writes are sent together */
	bool readable;
	bool idle; /* said EAGAIN, and is to be watched again */
};

void outflow_open(struct outflow *flow, int fd, uint32_t stream);
void outflow_close(struct outflow *flow);
void outflow_grant(struct outflow *flow, uint32_t bytes);
/* Sends at most one OUTPUT frame; true when something moved or the stream ended. */
bool outflow_pump(struct outflow *flow, uint32_t session, uint64_t now_ns);
/* When the stream wants to be pumped without an event; UINT64_MAX: never. */
uint64_t outflow_deadline(const struct outflow *flow);

struct inflow {
	int fd; /* write end, non-blocking; -1 when closed */
	bool writable;
	bool ending; /* the host sent end of input */
	size_t start;
	size_t size;
	uint32_t returnable; /* credit that was used up and not yet given back */
	uint8_t *ring; /* of WINDOW_BYTES_INITIAL */
};

void inflow_open(struct inflow *flow, int fd, uint8_t ring[WINDOW_BYTES_INITIAL]);
void inflow_close(struct inflow *flow);
/* Takes what the host sent; false when it is more than the credit that the host has. */
bool inflow_take(struct inflow *flow, const uint8_t *bytes, size_t size);
/* Moves bytes to the pipe and returns credit; true when something moved. */
bool inflow_pump(struct inflow *flow, uint32_t session);

#endif
