/*
 * The byte stream to the host. The frame layer above knows nothing of what carries it: a virtio-serial
 * port, a vsock connection, or the socket of a test.
 */
#ifndef COPPICE_TRANSPORT_H
#define COPPICE_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct transport {
	int fd; /* -1: no host is connected */
	/* A virtio port reads as ended while no host is connected; a socket that ended stays ended. */
	bool reconnects;
	/* Hosts connect one after the other, to `listener`. */
	bool listens;
	int listener;
};

enum { TRANSPORT_AGAIN = -1, TRANSPORT_AWAY = -2, TRANSPORT_CLOSED = -3 };

/* Takes the next host that waits, when none is connected; false: none does. */
bool transport_accept(struct transport *transport);
void transport_disconnect(struct transport *transport);

/* Bytes moved, or one of the values above. Never blocks. */
ssize_t transport_read(const struct transport *transport, void *buffer, size_t size);
ssize_t transport_write(const struct transport *transport, const void *buffer, size_t size);

#endif
