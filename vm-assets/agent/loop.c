#include "loop.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"
#include "clock.h"
#include "dispatch.h"
#include "frame.h"
#include "host.h"
#include "log.h"
#include "network/network.h"
#include "platform.h"
#include "poller.h"
#include "protocol.h"
#include "session.h"
#include "steps.h"

#define KEYS_COUNT_MAX 32
/* Interval of retries of a blocked stream, in case the device does not deliver an event. */
#define RETRY_MS 100
/* Shortest wait while the output buffer is full: its end is an event. */
#define FULL_MS 10

/* Poller keys of descriptors that do not belong to a session. */
enum source { SOURCE_TRANSPORT, SOURCE_LISTENER, SOURCE_CHILDREN };

static int children_fd = -1;
static bool line_readable = true;
/* No host is at the port. */
static bool away;
static struct transport *transport;

static void reap_children(void)
{
	struct signalfd_siginfo info;
	if (read(children_fd, &info, sizeof info) < 0)
		return;
	int status;
	pid_t pid;
	struct rusage usage;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0)
		session_reaped(pid, status, &usage);
}

/* Greets a connected host. */
static void meet_host(void)
{
	line_readable = true;
	away = false;
	host_meet();
	frame_flush();
}

static void await_host(void)
{
	if (transport->fd >= 0 || !transport_accept(transport))
		return;
	poller_add(transport->fd, EPOLLIN | EPOLLOUT | EPOLLET, SOURCE_TRANSPORT);
	meet_host();
}

/* Over a socket that was inherited no other host can come. */
static void lose_host(void)
{
	if (!transport->listens)
		platform_end(0);
	host_lose();
	transport_disconnect(transport);
	await_host();
}

static void leave_port(void)
{
	if (!away)
		host_lose();
	away = true;
	line_readable = false;
}

/* Reads from the transport. Returns true when something moved. */
static bool fill(void)
{
	enum frame_fill filled = frame_fill();
	if (filled == FILL_CLOSED)
		lose_host();
	else if (filled == FILL_AWAY)
		leave_port();
	else if (away)
		meet_host();
	line_readable = filled == FILL_SOME || filled == FILL_CLOSED;
	return line_readable;
}

/* Handles at most one frame. Returns true when something moved. */
static bool take_frame(void)
{
	struct frame frame;
	enum frame_status status = frame_next(&frame);
	if (status == FRAME_NONE && line_readable) {
		if (!fill())
			return false;
		/* The transport may have more bytes, for which there will be no new event. */
		status = frame_next(&frame);
		if (status == FRAME_NONE)
			return true;
	}
	if (status == FRAME_BAD)
		log_fatal("malformed frame: type %u, %u bytes", frame.type, frame.length);
	/* A request is handled only when its answer fits, so a host that does not read is not read from either. */
	if (status == FRAME_NONE)
		return false;
	if (!frame_can_answer()) {
		/* The end of a port is seen when it is read. A host that has gone makes no room. */
		if (line_readable && transport_is_away(transport))
			leave_port();
		return false;
	}
	if (!dispatch(&frame))
		log_fatal("malformed payload: type %u, %u bytes", frame.type, frame.length);
	frame_done(&frame);
	return true;
}

static int wait_ms(bool moved, uint64_t now_ns)
{
	if (moved)
		return 0;
	/* During a hold, no session is pumped. */
	uint64_t deadline = steps_held() ? UINT64_MAX : session_deadline();
	if (!steps_held() && !host_awaited() && network_deadline() < deadline)
		deadline = network_deadline();
	uint64_t wait = UINT64_MAX;
	if (deadline != UINT64_MAX)
		wait = deadline > now_ns ? (deadline - now_ns + 999999) / 1000000 : 0;
	if (frame_pending() && wait > RETRY_MS)
		wait = RETRY_MS;
	/* A due event would need a frame to the host, which does not read. */
	if (wait == 0 && !frame_can_answer())
		wait = FULL_MS;
	if (wait == UINT64_MAX)
		return -1;
	return wait < 3600000 ? (int)wait : 3600000;
}

static void take_event(uint64_t key)
{
	if (session_ready(key) || network_ready(key))
		return;
	if (key == SOURCE_CHILDREN)
		reap_children();
	else if (key == SOURCE_LISTENER)
		await_host();
	else
		line_readable = true;
}

void loop_open(struct transport *opened)
{
	sigset_t set;
	transport = opened;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	poller_open();
	children_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (children_fd < 0)
		log_fatal("signals: %s", strerror(errno));
	poller_add(children_fd, EPOLLIN, SOURCE_CHILDREN);
	if (transport->listens) {
		poller_add(transport->listener, EPOLLIN | EPOLLET, SOURCE_LISTENER);
		return;
	}
	poller_add(transport->fd, EPOLLIN | EPOLLOUT | EPOLLET, SOURCE_TRANSPORT);
	meet_host();
}

_Noreturn void loop_run(void)
{
	uint64_t keys[KEYS_COUNT_MAX];
	for (bool moved = true;;) {
		unsigned count = poller_wait(keys, KEYS_COUNT_MAX, wait_ms(moved, clock_now()));
		for (unsigned i = 0; i < count; i++)
			take_event(keys[i]);
		moved = host_resumes() ? host_pump() : take_frame();
		if (!steps_held())
			moved |= session_pump(clock_now());
		/* Programs wait for the next host as they do for a slow one. */
		if (!steps_held() && !host_awaited())
			moved |= network_pump(clock_now());
		bool pending = frame_pending();
		if (!frame_flush())
			lose_host();
		/* Sessions that waited for room in the output buffer can continue. */
		moved |= pending && !frame_pending();
	}
}
