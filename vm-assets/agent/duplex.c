#include "duplex.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "budget.h"
#include "protocol.h"
#include "rings.h"

/*
 * Segments of loopback have 64 KiB, which these buffers cannot hold. A receiver that never gets a full segment delays each
 * acknowledgement by 40 ms.
 */
#define SEGMENT_BYTES 4096

/* Bytes that a connection has carried when it gets large buffers. */
#define WIDEN_BYTES 131072
/* The largest window without a scale, which the small buffers do not need. */
#define WINDOW_BYTES_MAX 65535

/* Connections with large buffers. */
static unsigned wide_count;

static bool set_buffers(int fd, int size)
{
	return setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0 &&
	       setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size) == 0;
}

bool duplex_limit(int fd, int buffer)
{
	const int on = 1;
	const int mss = SEGMENT_BYTES;
	return set_buffers(fd, buffer) &&
	       setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss) == 0 &&
	       setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
}

/* Counts the carried bytes, and gives large buffers to a connection that carries much, which makes it several times faster. */
static void count(struct duplex *duplex, size_t bytes)
{
	const int window = WINDOW_BYTES_MAX;
	int fd = duplex->out.fd >= 0 ? duplex->out.fd : duplex->in.fd;
	if (duplex->wide || fd < 0 || (duplex->carried += bytes) < WIDEN_BYTES || wide_count == WIDE_SOCKETS_COUNT_MAX)
		return;
	duplex->wide = true;
	wide_count++;
	set_buffers(fd, WIDE_SOCKET_BUFFER_BYTES);
	setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof window);
}

void duplex_open(struct duplex *duplex, unsigned slot)
{
	*duplex = (struct duplex){0};
	inflow_await(&duplex->in, STREAM_DATA, rings_of_connection(slot));
	outflow_open(&duplex->out, -1, STREAM_DATA, INPUT_WINDOW_BYTES_INITIAL);
}

bool duplex_attach(struct duplex *duplex, const struct session *session, int fd)
{
	/* A descriptor for each direction, because they are closed separately. */
	int out = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (out < 0)
		return false;
	inflow_attach(&duplex->in, fd);
	duplex->out.fd = out;
	duplex->attached = true;
	session_watch(session, out, WATCH_OUTPUT);
	return true;
}

void duplex_reset(struct duplex *duplex, struct session *session)
{
	const struct linger now = {.l_onoff = 1, .l_linger = 0};
	int fd = duplex->in.fd >= 0 ? duplex->in.fd : duplex->out.fd;
	frame_send(AGENT_NET_RESET, session->id, NULL, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	/* Closed here, because closing the flow would shut the direction down first. */
	if (duplex->in.fd >= 0)
		close(duplex->in.fd);
	duplex->in.fd = -1;
	session_close(session);
}

bool duplex_take(struct duplex *duplex, struct session *session, const struct frame *frame)
{
	switch (frame->type) {
	case HOST_NET_DATA:
		count(duplex, frame->length);
		return inflow_take(&duplex->in, frame->payload, frame->length);
	case HOST_NET_END:
		return inflow_end(&duplex->in);
	case HOST_NET_RESET:
		duplex_reset(duplex, session);
		return true;
	default:
		return false;
	}
}

bool duplex_grant(struct duplex *duplex, uint32_t stream, uint32_t bytes)
{
	if (stream != STREAM_DATA)
		return false;
	return outflow_grant(&duplex->out, bytes);
}

void duplex_ready(struct duplex *duplex, enum watch watch)
{
	if (watch == WATCH_INPUT)
		duplex->in.writable = true;
	else
		duplex->out.readable = true;
}

bool duplex_pump(struct duplex *duplex, struct session *session, uint64_t now_ns)
{
	if (!duplex->attached)
		return false;
	uint32_t credit = duplex->out.credit;
	bool moved = outflow_pump(&duplex->out, session, WATCH_OUTPUT, now_ns);
	count(duplex, credit - duplex->out.credit);
	moved |= inflow_pump(&duplex->in, session->id);
	if (duplex->out.fd >= 0 || !frame_can_answer())
		return moved;
	/* A program that closed its socket takes no more bytes: the other side must not send them for ever. */
	if ((duplex->out.failed && !duplex->ended) || (duplex->in.failed && !duplex->in.ending)) {
		duplex_reset(duplex, session);
		return true;
	}
	if (!duplex->ended) {
		duplex->ended = true;
		frame_send(AGENT_NET_END, session->id, NULL, 0);
		moved = true;
	}
	/* Both sides have ended, and the program has received everything. */
	if (duplex->in.ending && duplex->in.fd < 0) {
		session_done(session, 0);
		return true;
	}
	return moved;
}

void duplex_close(struct duplex *duplex)
{
	if (duplex->wide)
		wide_count--;
	duplex->wide = false;
	inflow_release(&duplex->in);
	outflow_close(&duplex->out);
}
