#include "connection.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "budget.h"
#include "bytes.h"
#include "clock.h"
#include "duplex.h"
#include "protocol.h"
#include "session.h"

/* A listener with a full queue does not answer. The host must not wait for the kernel's limit of two minutes. */
#define CONNECT_NS 10000000000ULL

struct connection {
	int fd; /* the socket while it is being connected; then -1 */
	bool tried; /* the connect has made progress */
	uint64_t deadline_ns;
	struct duplex duplex;
};

static struct connection connections[CONNECTIONS_COUNT_MAX];
static const struct session_kind connection_kind;

static struct connection *connection_of(const struct session *session)
{
	return &connections[session->slot];
}

static void refuse(struct session *session, uint32_t reason)
{
	uint8_t payload[4];
	put_u32(payload, reason);
	frame_send(AGENT_NET_REFUSED, session->id, payload, sizeof payload);
	session_close(session);
}

static uint32_t reason_of(int error)
{
	if (error == ETIMEDOUT)
		return REFUSAL_TIMED_OUT;
	return error == ECONNREFUSED ? REFUSAL_REFUSED : REFUSAL_UNREACHABLE;
}

/* Creates a socket with small buffers, because the kernel does not charge them to a command. */
static int open_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !duplex_limit(fd, SOCKET_BUFFER_BYTES)) {
		close(fd);
		return -1;
	}
	return fd;
}

bool connection_dial(const struct frame *frame)
{
	uint16_t port = get_u16(frame->payload);
	if (port == 0 || get_u16(frame->payload + 2) != 0)
		return false;
	struct session *session = session_open(frame->session, &connection_kind);
	if (session == NULL)
		return true;
	struct connection *connection = connection_of(session);
	memset(connection, 0, sizeof *connection);
	duplex_open(&connection->duplex, session->slot);
	connection->fd = open_socket();
	const struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (connection->fd < 0 || (connect(connection->fd, (const struct sockaddr *)&address, sizeof address) != 0 &&
					  errno != EINPROGRESS)) {
		refuse(session, reason_of(errno));
		return true;
	}
	connection->deadline_ns = clock_now() + CONNECT_NS;
	session_watch(session, connection->fd, WATCH_INPUT);
	return true;
}

/* Reports the result of the connect to the host. Returns true when there was one. */
static bool settle_connect(struct session *session, uint64_t now_ns)
{
	struct connection *connection = connection_of(session);
	int error = 0;
	socklen_t size = sizeof error;
	struct sockaddr_in peer;
	socklen_t peer_size = sizeof peer;
	bool late = now_ns >= connection->deadline_ns;
	if ((!connection->tried && !late) || !frame_can_answer())
		return false;
	connection->tried = false;
	bool known = getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
	if (known && getpeername(connection->fd, (struct sockaddr *)&peer, &peer_size) != 0) {
		if (!late)
			return false;
		error = ETIMEDOUT;
	}
	/* Only a connection that was made can be reset; a port without a listener refuses it. */
	if (error == ECONNRESET || error == EPIPE) {
		frame_send(AGENT_NET_OPENED, session->id, NULL, 0);
		duplex_reset(&connection->duplex, session);
		return true;
	}
	if (error != 0 || !duplex_attach(&connection->duplex, session, connection->fd)) {
		refuse(session, reason_of(error));
		return true;
	}
	connection->fd = -1;
	frame_send(AGENT_NET_OPENED, session->id, NULL, 0);
	return true;
}

static bool connection_take(struct session *session, const struct frame *frame)
{
	struct connection *connection = connection_of(session);
	/* A reset can cross the answer. */
	if (!connection->duplex.attached && frame->type != HOST_NET_RESET)
		return false;
	return duplex_take(&connection->duplex, session, frame);
}

static bool connection_grant(struct session *session, uint32_t stream, uint32_t bytes)
{
	struct duplex *duplex = &connection_of(session)->duplex;
	return duplex->attached && duplex_grant(duplex, stream, bytes);
}

static void connection_ready(struct session *session, enum watch watch)
{
	struct connection *connection = connection_of(session);
	if (connection->duplex.attached)
		duplex_ready(&connection->duplex, watch);
	else
		connection->tried = true;
}

static bool connection_pump(struct session *session, uint64_t now_ns)
{
	struct connection *connection = connection_of(session);
	if (!connection->duplex.attached)
		return settle_connect(session, now_ns);
	return duplex_pump(&connection->duplex, session, now_ns);
}

static uint64_t connection_deadline(const struct session *session)
{
	const struct connection *connection = connection_of(session);
	return connection->duplex.attached ? outflow_deadline(&connection->duplex.out) : connection->deadline_ns;
}

static bool connection_settled(const struct session *session)
{
	return connection_of(session)->duplex.attached;
}

static void connection_lost(struct session *session)
{
	duplex_reset(&connection_of(session)->duplex, session);
}

static void connection_close(struct session *session)
{
	struct connection *connection = connection_of(session);
	if (connection->fd >= 0)
		close(connection->fd);
	connection->fd = -1;
	duplex_close(&connection->duplex);
}

static const struct session_kind connection_kind = {
	.class = SESSION_CONNECTION,
	.take = connection_take,
	.grant = connection_grant,
	.ready = connection_ready,
	.pump = connection_pump,
	.deadline = connection_deadline,
	.settled = connection_settled,
	.lost = connection_lost,
	.close = connection_close,
};
