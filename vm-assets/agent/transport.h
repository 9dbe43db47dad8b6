/*
 * The byte stream to the host. The frame layer does not depend on its kind: a virtio-serial port, a vsock connection, or a
 * socket of a test.
 */
#ifndef COPPICE_TRANSPORT_H
#define COPPICE_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct transport {
	int fd; /* -1: no host is connected */
	/* A virtio port returns end-of-file while no host is connected; an ended socket stays ended. */
	bool reconnects;
	/* Hosts connect to `listener` one after another. */
	bool listens;
	int listener;
};

enum { TRANSPORT_AGAIN = -1, TRANSPORT_AWAY = -2, TRANSPORT_CLOSED = -3 };

/* Accepts the next waiting host if none is connected. Returns false when none waits. */
bool transport_accept(struct transport *transport);
void transport_disconnect(struct transport *transport);

/* True when no host is at a port. */
bool transport_is_away(const struct transport *transport);
/* Return the number of bytes, or one of the values above. They never block. */
ssize_t transport_read(const struct transport *transport, void *buffer, size_t size);
ssize_t transport_write(const struct transport *transport, const void *buffer, size_t size);

#endif
