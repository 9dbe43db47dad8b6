#include "transport.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

static ssize_t failure(void)
{
	if (errno == EAGAIN || errno == EINTR)
		return TRANSPORT_AGAIN;
	return TRANSPORT_CLOSED;
}

/* Commands in the guest can connect to a vsock port, too. */
static bool is_host(const struct sockaddr_storage *peer)
{
	return peer->ss_family != AF_VSOCK || ((const struct sockaddr_vm *)peer)->svm_cid == VMADDR_CID_HOST;
}

bool transport_accept(struct transport *transport)
{
	while (transport->listens && transport->fd < 0) {
		struct sockaddr_storage peer = {0};
		socklen_t size = sizeof peer;
		int fd = accept4(transport->listener, (struct sockaddr *)&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
			return false;
		if (fd >= 0 && is_host(&peer))
			transport->fd = fd;
		else if (fd >= 0)
			close(fd);
	}
	return transport->listens;
}

void transport_disconnect(struct transport *transport)
{
	close(transport->fd);
	transport->fd = -1;
}

bool transport_is_away(const struct transport *transport)
{
	struct pollfd port = {.fd = transport->fd};
	return transport->reconnects && poll(&port, 1, 0) == 1 && (port.revents & POLLHUP) != 0;
}

ssize_t transport_read(const struct transport *transport, void *buffer, size_t size)
{
	if (transport->fd < 0)
		return TRANSPORT_AGAIN;
	ssize_t count = read(transport->fd, buffer, size);
	if (count > 0)
		return count;
	if (count < 0)
		return failure();
	return transport->reconnects ? TRANSPORT_AWAY : TRANSPORT_CLOSED;
}

ssize_t transport_write(const struct transport *transport, const void *buffer, size_t size)
{
	if (transport->fd < 0)
		return TRANSPORT_AGAIN;
	ssize_t count = write(transport->fd, buffer, size);
	return count >= 0 ? count : failure();
}
