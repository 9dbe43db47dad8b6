#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "budget.h"
#include "bytes.h"
#include "clock.h"
#include "flow.h"
#include "protocol.h"
#include "rings.h"
#include "session.h"

/* A listener with a full queue does not answer. The host must not wait for the kernel's limit of two minutes. */
#define CONNECT_NS 10000000000ULL

struct connection {
	int fd; /* the socket while it is being connected; then -1 */
	bool tried; /* the connect has made progress */
	bool ended; /* NET_END was sent to the host */
	uint64_t deadline_ns;
	struct inflow in;
	struct outflow out;
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

/*
 * Segments of loopback have 64 KiB, which these buffers cannot hold. A receiver that never gets a full segment delays each
 * acknowledgement by 40 ms.
 */
#define SEGMENT_BYTES 4096

/* Creates a socket with small buffers, because the kernel does not charge them to a command. */
static int open_socket(void)
{
	const int size = SOCKET_BUFFER_BYTES;
	const int on = 1;
	const int mss = SEGMENT_BYTES;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) != 0 ||
			       setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) != 0 ||
			       setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss) != 0 ||
			       setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)) {
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
	connection->in.fd = connection->out.fd = -1;
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
	int out = error == 0 ? fcntl(connection->fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (out < 0) {
		refuse(session, reason_of(error));
		return true;
	}
	inflow_open(&connection->in, connection->fd, STREAM_DATA, rings_of_connection(session->slot));
	outflow_open(&connection->out, out, STREAM_DATA, INPUT_WINDOW_BYTES_INITIAL);
	connection->fd = -1;
	session_watch(session, out, WATCH_OUTPUT);
	frame_send(AGENT_NET_OPENED, session->id, NULL, 0);
	return true;
}

static bool is_open(const struct connection *connection)
{
	return connection->fd < 0;
}

/* Closes with a reset, which the other side has sent or requested. */
static void reset(struct session *session)
{
	struct connection *connection = connection_of(session);
	const struct linger now = {.l_onoff = 1, .l_linger = 0};
	int fd = connection->in.fd >= 0 ? connection->in.fd : connection->out.fd;
	frame_send(AGENT_NET_RESET, session->id, NULL, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	/* Closed here, because closing the flow would shut the direction down first. */
	if (connection->in.fd >= 0)
		close(connection->in.fd);
	connection->in.fd = -1;
	session_close(session);
}

static bool connection_take(struct session *session, const struct frame *frame)
{
	struct connection *connection = connection_of(session);
	switch (frame->type) {
	case HOST_NET_DATA:
		return is_open(connection) && inflow_take(&connection->in, frame->payload, frame->length);
	case HOST_NET_END:
		return is_open(connection) && inflow_end(&connection->in);
	case HOST_NET_RESET:
		reset(session);
		return true;
	default:
		return false;
	}
}

static bool connection_grant(struct session *session, uint32_t stream, uint32_t bytes)
{
	if (stream != STREAM_DATA || !is_open(connection_of(session)))
		return false;
	outflow_grant(&connection_of(session)->out, bytes);
	return true;
}

static void connection_ready(struct session *session, enum watch watch)
{
	struct connection *connection = connection_of(session);
	if (!is_open(connection))
		connection->tried = true;
	else if (watch == WATCH_INPUT)
		connection->in.writable = true;
	else
		connection->out.readable = true;
}

static bool connection_pump(struct session *session, uint64_t now_ns)
{
	struct connection *connection = connection_of(session);
	if (!is_open(connection))
		return settle_connect(session, now_ns);
	bool moved = outflow_pump(&connection->out, session, WATCH_OUTPUT, now_ns);
	moved |= inflow_pump(&connection->in, session->id);
	if (connection->out.fd >= 0 || !frame_can_answer())
		return moved;
	if (connection->out.failed && !connection->ended) {
		reset(session);
		return true;
	}
	if (!connection->ended) {
		connection->ended = true;
		frame_send(AGENT_NET_END, session->id, NULL, 0);
		moved = true;
	}
	/* Both sides have ended, and the program has received everything. */
	if (connection->in.ending && connection->in.fd < 0) {
		session_done(session, 0);
		return true;
	}
	return moved;
}

static uint64_t connection_deadline(const struct session *session)
{
	const struct connection *connection = connection_of(session);
	return is_open(connection) ? outflow_deadline(&connection->out) : connection->deadline_ns;
}

static bool connection_settled(const struct session *session)
{
	return is_open(connection_of(session));
}

static void connection_close(struct session *session)
{
	struct connection *connection = connection_of(session);
	if (connection->fd >= 0)
		close(connection->fd);
	connection->fd = -1;
	inflow_release(&connection->in);
	outflow_close(&connection->out);
}

static const struct session_kind connection_kind = {
	.class = SESSION_CONNECTION,
	.take = connection_take,
	.grant = connection_grant,
	.ready = connection_ready,
	.pump = connection_pump,
	.deadline = connection_deadline,
	.settled = connection_settled,
	.close = connection_close,
};
