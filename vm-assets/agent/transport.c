#include "transport.h"

#include <errno.h>
#include <unistd.h>

static ssize_t failure(void)
{
	if (errno == EAGAIN || errno == EINTR)
		return TRANSPORT_AGAIN;
	return TRANSPORT_CLOSED;
}

ssize_t transport_read(const struct transport *transport, void *buffer, size_t size)
{
	ssize_t count = read(transport->fd, buffer, size);
	if (count > 0)
		return count;
	if (count < 0)
		return failure();
	return transport->reconnects ? TRANSPORT_AWAY : TRANSPORT_CLOSED;
}

ssize_t transport_write(const struct transport *transport, const void *buffer, size_t size)
{
	ssize_t count = write(transport->fd, buffer, size);
	return count >= 0 ? count : failure();
}
