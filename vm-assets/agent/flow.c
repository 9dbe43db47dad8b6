#include "flow.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "frame.h"

/* Credit goes back in pieces of this size, so that a slow reader does not cost a frame a read. */
#define RETURN_BYTES_MIN (WINDOW_BYTES_INITIAL / 4)

/*
 * The agent runs before every command, so without a pause it would send each line of a program by itself.
 * After a short read the next waits, unwatched, until the pipe had time to fill.
 */
#define HOLD_NS 1000000
#define HOLD_BYTES_MAX 32768

void outflow_open(struct outflow *flow, int fd, uint32_t stream)
{
	*flow = (struct outflow){.fd = fd, .stream = stream, .credit = WINDOW_BYTES_INITIAL, .readable = true};
}

void outflow_close(struct outflow *flow)
{
	if (flow->fd >= 0)
		close(flow->fd);
	flow->fd = -1;
}

void outflow_grant(struct outflow *flow, uint32_t bytes)
{
	flow->credit = flow->credit > UINT32_MAX - bytes ? UINT32_MAX : flow->credit + bytes;
}

/* Without credit the end of the stream must be seen all the same: EXIT waits for it. */
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
	return flow->fd >= 0 && flow->readable && flow->credit > 0 ? flow->hold_ns : UINT64_MAX;
}

bool outflow_pump(struct outflow *flow, uint32_t session, uint64_t now_ns)
{
	if (flow->fd < 0 || !flow->readable || now_ns < flow->hold_ns)
		return false;
	size_t room = frame_room();
	if (room <= sizeof(uint32_t))
		return false;
	size_t size = room - sizeof(uint32_t);
	if (size > flow->credit)
		size = flow->credit;
	if (size == 0)
		return outflow_ended(flow);
	uint8_t *payload = frame_payload();
	ssize_t count = read(flow->fd, payload + sizeof(uint32_t), size);
	if (count < 0 && errno == EINTR)
		return true;
	if (count < 0 && errno == EAGAIN) {
		flow->readable = false;
		flow->idle = true;
		return false;
	}
	if (count <= 0) {
		outflow_close(flow);
		return true;
	}
	put_u32(payload, flow->stream);
	frame_commit(AGENT_OUTPUT, session, sizeof(uint32_t) + (size_t)count);
	flow->credit -= (uint32_t)count;
	if (count < HOLD_BYTES_MAX)
		flow->hold_ns = now_ns + HOLD_NS;
	return true;
}

void inflow_open(struct inflow *flow, int fd, uint8_t ring[WINDOW_BYTES_INITIAL])
{
	flow->ring = ring;
	flow->fd = fd;
	flow->writable = true;
	flow->ending = false;
	flow->start = 0;
	flow->size = 0;
	flow->returnable = 0;
}

void inflow_close(struct inflow *flow)
{
	if (flow->fd >= 0)
		close(flow->fd);
	flow->fd = -1;
}

bool inflow_take(struct inflow *flow, const uint8_t *bytes, size_t size)
{
	if (size == 0) {
		flow->ending = true;
		return true;
	}
	if (flow->ending)
		return false;
	/* What was used up and not yet returned is credit that the host does not have. */
	if (size > WINDOW_BYTES_INITIAL - flow->size - flow->returnable)
		return false;
	/* Nobody reads any more: the bytes count as taken, so that the host can finish. */
	if (flow->fd < 0) {
		flow->returnable += (uint32_t)size;
		return true;
	}
	size_t end = (flow->start + flow->size) % WINDOW_BYTES_INITIAL;
	size_t first = size < WINDOW_BYTES_INITIAL - end ? size : WINDOW_BYTES_INITIAL - end;
	memcpy(flow->ring + end, bytes, first);
	memcpy(flow->ring, bytes + first, size - first);
	flow->size += size;
	return true;
}

/* One write to the pipe; true when bytes moved or nobody reads any more. */
static bool inflow_write(struct inflow *flow)
{
	size_t run = WINDOW_BYTES_INITIAL - flow->start;
	ssize_t count = write(flow->fd, flow->ring + flow->start, flow->size < run ? flow->size : run);
	if (count < 0 && errno == EINTR)
		return true;
	if (count < 0 && errno == EAGAIN) {
		flow->writable = false;
		return false;
	}
	if (count < 0) {
		/* EPIPE: the command closed its input, which is its right. */
		count = (ssize_t)flow->size;
		inflow_close(flow);
	}
	flow->start = (flow->start + (size_t)count) % WINDOW_BYTES_INITIAL;
	flow->size -= (size_t)count;
	flow->returnable += (uint32_t)count;
	return true;
}

bool inflow_pump(struct inflow *flow, uint32_t session)
{
	bool moved = false;
	if (flow->fd >= 0 && flow->size > 0 && flow->writable)
		moved = inflow_write(flow);
	if (flow->fd >= 0 && flow->size == 0 && flow->ending)
		inflow_close(flow);
	bool due = flow->returnable >= RETURN_BYTES_MIN || (flow->returnable > 0 && flow->size == 0);
	if (due && !flow->ending && frame_can_answer()) {
		uint8_t payload[8];
		put_u32(payload, STREAM_STDIN);
		put_u32(payload + 4, flow->returnable);
		frame_send(AGENT_WINDOW, session, payload, sizeof payload);
		flow->returnable = 0;
		moved = true;
	}
	return moved;
}
