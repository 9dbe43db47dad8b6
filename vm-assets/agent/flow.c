#include "flow.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "budget.h"
#include "bytes.h"
#include "frame.h"
#include "rings.h"

/* Credit is returned in quarters of a window, so that a slow reader does not cost one frame for each read. */
#define RETURN_SHARE 4

/*
 * The agent has priority over commands, so it would send every line of a program in a frame of its own. After a short
 * read it waits, without watching the pipe, until the pipe had time to fill.
 */
#define HOLD_NS 1000000
#define HOLD_BYTES_MAX 32768

void outflow_open(struct outflow *flow, int fd, uint32_t stream, uint32_t credit)
{
	*flow = (struct outflow){.fd = fd, .stream = stream, .credit = credit, .rest = SIZE_MAX, .readable = true};
}

void outflow_open_kept(struct outflow *flow, int fd, uint32_t stream, uint8_t *ring)
{
	outflow_open(flow, fd, stream, 0);
	keep_open(&flow->keep, ring);
}

void outflow_close(struct outflow *flow)
{
	if (flow->fd >= 0)
		close(flow->fd);
	flow->fd = -1;
}

void outflow_release(struct outflow *flow)
{
	outflow_close(flow);
	keep_close(&flow->keep);
}

bool outflow_over(const struct outflow *flow)
{
	return flow->fd < 0 && keep_unsent(&flow->keep) == 0;
}

void outflow_cut(struct outflow *flow)
{
	int count = 0;
	if (flow->fd < 0 || flow->rest != SIZE_MAX)
		return;
	flow->rest = ioctl(flow->fd, FIONREAD, &count) == 0 ? (size_t)count : 0;
	flow->readable = true;
	flow->hold_ns = 0;
}

static bool is_kept(const struct outflow *flow)
{
	return flow->keep.capacity > 0;
}

bool outflow_grant(struct outflow *flow, uint32_t bytes)
{
	if (is_kept(flow))
		return keep_grant(&flow->keep, bytes);
	flow->credit = flow->credit > UINT32_MAX - bytes ? UINT32_MAX : flow->credit + bytes;
	return true;
}

/* The end of a stream must be noticed even without credit, because EXIT waits for it. */
static bool outflow_ended(struct outflow *flow)
{
	struct pollfd poll_fd = {.fd = flow->fd, .events = POLLIN};
	if (poll(&poll_fd, 1, 0) != 1 || (poll_fd.revents & POLLIN) != 0 || (poll_fd.revents & POLLHUP) == 0)
		return false;
	outflow_close(flow);
	return true;
}

uint64_t outflow_deadline(const struct outflow *flow)
{
	bool full = is_kept(flow) ? keep_is_full(&flow->keep) : flow->credit == 0;
	return flow->fd >= 0 && flow->readable && !full ? flow->hold_ns : UINT64_MAX;
}

/* The number of bytes that may be read now, at most `size`. `moved`: the stream ended. */
static size_t outflow_limit(struct outflow *flow, size_t size, uint64_t now_ns, bool *moved)
{
	*moved = false;
	if (flow->fd < 0 || !flow->readable || now_ns < flow->hold_ns || size == 0)
		return 0;
	*moved = flow->rest == 0;
	if (*moved)
		outflow_close(flow);
	return size < flow->rest ? size : flow->rest;
}

/* Reads once. Returns the number of bytes; 0 when there are none now or the stream ended, which `moved` says. */
static size_t outflow_read(struct outflow *flow, const struct spans *spans, const struct session *session,
	enum watch watch, uint64_t now_ns, bool *moved)
{
	ssize_t count = readv(flow->fd, spans->at, spans->count);
	*moved = true;
	if (count < 0 && errno == EINTR)
		return 0;
	if (count < 0 && errno == EAGAIN && flow->rest == SIZE_MAX) {
		flow->readable = false;
		session_watch_again(session, flow->fd, watch);
		*moved = false;
		return 0;
	}
	if (count <= 0) {
		/* A terminal that no process has open returns EIO. */
		flow->failed = count < 0;
		outflow_close(flow);
		return 0;
	}
	if (flow->rest != SIZE_MAX)
		flow->rest -= (size_t)count;
	else if (count < HOLD_BYTES_MAX)
		flow->hold_ns = now_ns + HOLD_NS;
	return (size_t)count;
}

/* Moves bytes from the descriptor to the ring, as many as a frame has. */
static bool outflow_fill(struct outflow *flow, const struct session *session, enum watch watch, uint64_t now_ns)
{
	bool moved;
	size_t size = outflow_limit(flow, FRAME_PAYLOAD_BYTES_MAX - sizeof flow->stream, now_ns, &moved);
	if (size == 0)
		return moved;
	const struct spans spans = keep_room(&flow->keep, size);
	if (spans.count == 0)
		return outflow_ended(flow);
	keep_add(&flow->keep, outflow_read(flow, &spans, session, watch, now_ns, &moved));
	return moved;
}

/* An OUTPUT frame has the number of its stream before the bytes. */
static bool pump_kept(struct outflow *flow, const struct session *session, enum watch watch, uint64_t now_ns)
{
	bool moved = outflow_fill(flow, session, watch, now_ns);
	size_t size = keep_unsent(&flow->keep);
	size_t room = frame_room();
	if (size == 0 || room <= sizeof flow->stream)
		return moved;
	if (size > room - sizeof flow->stream)
		size = room - sizeof flow->stream;
	uint8_t *payload = frame_payload();
	put_u32(payload, flow->stream);
	keep_send(&flow->keep, payload + sizeof flow->stream, size);
	frame_commit(AGENT_OUTPUT, session->id, sizeof flow->stream + size);
	return true;
}

bool outflow_pump(struct outflow *flow, const struct session *session, enum watch watch, uint64_t now_ns)
{
	if (is_kept(flow))
		return pump_kept(flow, session, watch, now_ns);
	bool moved;
	size_t head = flow->stream == STREAM_DATA ? 0 : sizeof flow->stream;
	size_t room = frame_room();
	size_t size = outflow_limit(flow, room > head ? room - head : 0, now_ns, &moved);
	if (size == 0)
		return moved;
	if (size > flow->credit)
		size = flow->credit;
	if (size == 0)
		return outflow_ended(flow);
	uint8_t *payload = frame_payload();
	const struct spans spans = {.at = {{.iov_base = payload + head, .iov_len = size}}, .count = 1};
	size_t count = outflow_read(flow, &spans, session, watch, now_ns, &moved);
	if (count == 0)
		return moved;
	if (head > 0)
		put_u32(payload, flow->stream);
	frame_commit(head > 0 ? AGENT_OUTPUT : AGENT_NET_DATA, session->id, head + count);
	flow->credit -= (uint32_t)count;
	return true;
}

/* Credit beyond the initial windows that inputs have now. */
static size_t granted;

/* Enlarges the window of a reader that emptied it, if the common limit allows. Returns the additional credit. */
static uint32_t inflow_grow(struct inflow *flow)
{
	size_t more = INPUT_WINDOW_BYTES_MAX - flow->window;
	/* Only an empty ring can change its size. */
	if (more == 0 || flow->fd < 0 || flow->size > 0 || flow->taken < flow->window || more > GRANTS_BYTES_MAX - granted)
		return 0;
	granted += more;
	flow->window += more;
	flow->start = 0;
	flow->taken = 0;
	return (uint32_t)more;
}

void inflow_open(struct inflow *flow, int fd, uint32_t stream, uint8_t *ring)
{
	*flow = (struct inflow){
		.fd = fd, .stream = stream, .writable = true, .window = INPUT_WINDOW_BYTES_INITIAL, .ring = ring};
}

void inflow_await(struct inflow *flow, uint32_t stream, uint8_t *ring)
{
	inflow_open(flow, -1, stream, ring);
	flow->writable = false;
	flow->awaited = true;
}

void inflow_attach(struct inflow *flow, int fd)
{
	flow->fd = fd;
	flow->writable = true;
	flow->awaited = false;
}

void inflow_close(struct inflow *flow)
{
	if (flow->fd >= 0 && flow->stream == STREAM_DATA)
		shutdown(flow->fd, SHUT_WR);
	if (flow->fd >= 0)
		close(flow->fd);
	flow->fd = -1;
	flow->size = 0;
}

void inflow_release(struct inflow *flow)
{
	inflow_close(flow);
	if (flow->touched > 0)
		rings_forget(flow->ring, flow->touched);
	flow->touched = 0;
	if (flow->window > INPUT_WINDOW_BYTES_INITIAL)
		granted -= flow->window - INPUT_WINDOW_BYTES_INITIAL;
	flow->window = 0;
}

/*
 * Writes once to the descriptor. Returns the number of accepted bytes: 0 when the descriptor is not writable now, all when
 * no process reads any more.
 */
static size_t inflow_write(struct inflow *flow, const uint8_t *bytes, size_t size)
{
	ssize_t count;
	do
		count = write(flow->fd, bytes, size);
	while (count < 0 && errno == EINTR);
	if (count < 0 && errno == EAGAIN) {
		flow->writable = false;
		return 0;
	}
	if (count < 0) {
		/* EPIPE: the command closed its standard input. */
		flow->failed = true;
		flow->returnable += (uint32_t)flow->size;
		inflow_close(flow);
		return size;
	}
	return (size_t)count;
}

static void ring_append(struct inflow *flow, const uint8_t *bytes, size_t size)
{
	size_t end = (flow->start + flow->size) % flow->window;
	size_t first = size < flow->window - end ? size : flow->window - end;
	memcpy(flow->ring + end, bytes, first);
	memcpy(flow->ring, bytes + first, size - first);
	flow->size += size;
	if (flow->touched < end + first)
		flow->touched = end + first;
}

bool inflow_take(struct inflow *flow, const uint8_t *bytes, size_t size)
{
	/* Credit that was consumed but not returned yet does not belong to the host. */
	if (flow->ending || size > flow->window - flow->size - flow->returnable)
		return false;
	flow->taken += size;
	flow->received += size;
	size_t direct = 0;
	/* Without a reader the bytes count as consumed, so that the host can finish. */
	if (flow->fd < 0 && !flow->awaited)
		direct = size;
	else if (flow->size == 0 && flow->writable)
		direct = inflow_write(flow, bytes, size);
	flow->returnable += (uint32_t)direct;
	if (direct < size)
		ring_append(flow, bytes + direct, size - direct);
	return true;
}

bool inflow_end(struct inflow *flow)
{
	bool first = !flow->ending;
	flow->ending = true;
	return first;
}

/* Writes once from the ring. */
static bool inflow_drain(struct inflow *flow)
{
	size_t run = flow->window - flow->start;
	size_t count = inflow_write(flow, flow->ring + flow->start, flow->size < run ? flow->size : run);
	if (flow->fd < 0)
		return true;
	flow->start = (flow->start + count) % flow->window;
	flow->size -= count;
	flow->returnable += (uint32_t)count;
	/* Restart at the front, so that a ring that is rarely full uses few pages. */
	if (flow->size == 0)
		flow->start = 0;
	return count > 0;
}

bool inflow_pump(struct inflow *flow, uint32_t session)
{
	bool moved = false;
	if (flow->fd >= 0 && flow->size > 0 && flow->writable)
		moved = inflow_drain(flow);
	if (flow->fd >= 0 && flow->size == 0 && flow->ending)
		inflow_close(flow);
	/* Smaller credit would cost a frame for each line of input. It is worth that only when the window grows with it. */
	bool grows = flow->window < INPUT_WINDOW_BYTES_MAX && flow->taken >= flow->window && flow->size == 0;
	bool due = flow->returnable >= flow->window / RETURN_SHARE || (grows && flow->returnable > 0);
	if (due && !flow->ending && frame_can_answer()) {
		uint8_t payload[8];
		put_u32(payload, flow->stream);
		put_u32(payload + 4, flow->returnable + inflow_grow(flow));
		frame_send(AGENT_WINDOW, session, payload, sizeof payload);
		flow->returnable = 0;
		moved = true;
	}
	return moved;
}
