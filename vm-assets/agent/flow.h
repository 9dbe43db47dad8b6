/*
 * Byte streams with flow control: from a descriptor to the host (outflow), and from the host to a descriptor (inflow). A
 * flow owns its descriptor and closes it at its end. The two directions of a socket are separate flows.
 */
#ifndef COPPICE_FLOW_H
#define COPPICE_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "keep.h"
#include "protocol.h"
#include "session.h"

struct outflow {
	int fd; /* read end, non-blocking; -1 after the end */
	uint32_t stream; /* STREAM_DATA for a socket, otherwise the stream of OUTPUT */
	uint32_t credit; /* bytes that the host still accepts; not used when bytes are kept */
	size_t rest; /* bytes until the end that outflow_cut set; SIZE_MAX: there is none */
	uint64_t hold_ns; /* not read before this time, so that small writes are combined */
	bool readable;
	bool failed; /* ended by an error: the socket was reset */
	struct keep keep;
};

void outflow_open(struct outflow *flow, int fd, uint32_t stream, uint32_t credit);
/* The same of a stream whose bytes are kept until they are granted. `ring` has WINDOW_BYTES_INITIAL. */
void outflow_open_kept(struct outflow *flow, int fd, uint32_t stream, uint8_t *ring);
void outflow_close(struct outflow *flow);
/* outflow_close at the end of the session; also releases the ring. */
void outflow_release(struct outflow *flow);
/* True when the stream has ended and all of it is sent. */
bool outflow_over(const struct outflow *flow);
/* Ends the stream after the bytes that it has now, although there may be writers. */
void outflow_cut(struct outflow *flow);
/* Returns false when a stream whose bytes are kept has not so many. */
bool outflow_grant(struct outflow *flow, uint32_t bytes);
/* Sends at most one frame. Returns true when something moved or the stream ended. `watch`: the watch of its descriptor. */
bool outflow_pump(struct outflow *flow, const struct session *session, enum watch watch, uint64_t now_ns);
/* Time at which the stream must be pumped without an event; UINT64_MAX: never. */
uint64_t outflow_deadline(const struct outflow *flow);

struct inflow {
	int fd; /* write end, non-blocking; -1 when closed */
	uint32_t stream;
	bool writable;
	bool awaited; /* there will be a descriptor; until then all bytes wait in the ring */
	bool ending; /* the host sent the end of input */
	bool failed; /* no process reads any more */
	size_t window; /* limit of bytes in the ring or in transit; grows while the reader keeps up */
	size_t start;
	size_t size;
	size_t taken; /* bytes received since the window last grew */
	uint64_t received; /* bytes received in all */
	uint32_t returnable; /* credit that was consumed and not returned yet */
	uint8_t *ring; /* has INPUT_WINDOW_BYTES_MAX */
	size_t touched; /* the part of the ring that may contain bytes */
};

void inflow_open(struct inflow *flow, int fd, uint32_t stream, uint8_t *ring);
/* Opens a flow that gets its descriptor later. */
void inflow_await(struct inflow *flow, uint32_t stream, uint8_t *ring);
void inflow_attach(struct inflow *flow, int fd);
/* Ends the stream. Bytes that still arrive count as consumed. */
void inflow_close(struct inflow *flow);
/* inflow_close at the end of the session; also releases the ring and the additional credit. */
void inflow_release(struct inflow *flow);
/* Takes bytes from the host. Returns false when they exceed the host's credit, or follow the end. */
bool inflow_take(struct inflow *flow, const uint8_t *bytes, size_t size);
/* Ends the input; the descriptor closes after the pending bytes. Returns false when it had ended before. */
bool inflow_end(struct inflow *flow);
/* Moves bytes to the descriptor and returns credit. Returns true when something moved. */
bool inflow_pump(struct inflow *flow, uint32_t session);

#endif
