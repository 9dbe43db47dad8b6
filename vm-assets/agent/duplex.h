/* The two directions of a connection over the stream, from the moment at which both sides may send. */
#ifndef COPPICE_DUPLEX_H
#define COPPICE_DUPLEX_H

#include <stdbool.h>
#include <stdint.h>

#include "flow.h"
#include "frame.h"
#include "session.h"

struct duplex {
	bool attached; /* there is a socket */
	bool ended; /* NET_END was sent to the host */
	bool wide; /* the socket has large buffers */
	size_t carried; /* bytes in both directions, until it is wide */
	struct inflow in;
	struct outflow out;
};

/*
 * Gives a socket, before it is connected, or a listener, for the sockets that it accepts, the options of a connection: small
 * buffers, of `buffer` bytes each, and no delays. Returns false and errno on failure.
 */
bool duplex_limit(int fd, int buffer);

/* Prepares for frames of the host, whose bytes wait in the ring of the connection's slot until a socket is attached. */
void duplex_open(struct duplex *duplex, unsigned slot);
/* Takes over a connected socket, which the caller watches as WATCH_INPUT. Returns false when there is no descriptor left. */
bool duplex_attach(struct duplex *duplex, const struct session *session, int fd);
/* Handles NET_DATA, NET_END and NET_RESET, which closes the session. Returns false when the frame is malformed. */
bool duplex_take(struct duplex *duplex, struct session *session, const struct frame *frame);
bool duplex_grant(struct duplex *duplex, uint32_t stream, uint32_t bytes);
void duplex_ready(struct duplex *duplex, enum watch watch);
/* Moves bytes between socket and host. Returns true when something moved. May close the session. */
bool duplex_pump(struct duplex *duplex, struct session *session, uint64_t now_ns);
/* Closes the session with a reset, which the other side has sent or requested. */
void duplex_reset(struct duplex *duplex, struct session *session);
/* Releases everything, also before a socket was attached. */
void duplex_close(struct duplex *duplex);

#endif
