/*
 * Byte streams under flow control: from a descriptor to the host (outflow), and from the host to a descriptor (inflow).
 * A flow owns its descriptor and closes it at its end; of a socket each direction has one, and ends by itself.
 */
#ifndef COPPICE_FLOW_H
#define COPPICE_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"
#include "session.h"

struct outflow {
	int fd; /* read end, non-blocking; -1 when ended */
	uint32_t stream; /* STREAM_DATA: a socket's bytes, else OUTPUT */
	uint32_t credit; /* bytes that the host still takes */
	uint64_t hold_ns; /* not read before this time, so that small writes are sent together */
	bool readable;
	bool failed; /* it ended in an error: the socket was reset */
};

void outflow_open(struct outflow *flow, int fd, uint32_t stream, uint32_t credit);
void outflow_close(struct outflow *flow);
void outflow_grant(struct outflow *flow, uint32_t bytes);
/* Sends at most one frame; true when something moved or the stream ended. `watch`: of the flow's descriptor. */
bool outflow_pump(struct outflow *flow, const struct session *session, enum watch watch, uint64_t now_ns);
/* When the stream wants to be pumped without an event; UINT64_MAX: never. */
uint64_t outflow_deadline(const struct outflow *flow);

struct inflow {
	int fd; /* write end, non-blocking; -1 when closed */
	uint32_t stream;
	bool writable;
	bool ending; /* the host sent end of input */
	bool failed; /* nobody reads any more */
	size_t window; /* bytes that may be in the ring or on their way: grows while the reader keeps up */
	size_t start;
	size_t size;
	size_t taken; /* bytes that came since the window has its size */
	uint32_t returnable; /* credit that was used up and not yet given back */
	uint8_t *ring; /* of INPUT_WINDOW_BYTES_MAX */
	bool ring_used;
};

void inflow_open(struct inflow *flow, int fd, uint32_t stream, uint8_t *ring);
/* Ends the stream; bytes that still come count as read. */
void inflow_close(struct inflow *flow);
/* inflow_close, and gives back the ring and the credit beyond the first window: the session ends. */
void inflow_release(struct inflow *flow);
/* Takes what the host sent; false when it is more than the credit that the host has, or behind the end. */
bool inflow_take(struct inflow *flow, const uint8_t *bytes, size_t size);
/* The host's end of input: the descriptor is closed behind what is on its way. False: it ended before. */
bool inflow_end(struct inflow *flow);
/* Moves bytes to the descriptor and returns credit; true when something moved. */
bool inflow_pump(struct inflow *flow, uint32_t session);

#endif
