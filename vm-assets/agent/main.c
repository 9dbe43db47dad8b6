/*
 * The guest agent: PID 1 of a sandbox's virtual machine. One loop over one epoll, and tables of fixed
 * size. A descriptor that was ready is remembered as such until it says EAGAIN.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "frame.h"
#include "log.h"
#include "loop.h"
#include "platform.h"
#include "protocol.h"
#include "session.h"
#include "steps.h"

#define EVENTS_COUNT_MAX 32
/* Retry of a blocked stream: a safety net under the edge that a device might not deliver. */
#define RETRY_MS 100

enum source { SOURCE_TRANSPORT, SOURCE_LISTENER, SOURCE_CHILDREN, SOURCE_SESSION };

static int loop_fd = -1;
static int children_fd = -1;
static bool line_readable = true;
static struct transport transport = {.fd = -1, .listener = -1};

uint64_t loop_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void watch(int operation, int fd, uint32_t events, uint64_t key)
{
	struct epoll_event event = {.events = events, .data.u64 = key};
	if (epoll_ctl(loop_fd, operation, fd, &event) != 0)
		log_fatal("epoll: %s", strerror(errno));
}

static void watch_session(int operation, int fd, unsigned slot, enum watch kind)
{
	uint32_t events = kind == WATCH_STDIN ? EPOLLOUT | EPOLLET : EPOLLIN | EPOLLET;
	/* A stream that has something to read need not wake the agent with every further write. */
	if (kind == WATCH_STDOUT || kind == WATCH_STDERR)
		events |= EPOLLONESHOT;
	watch(operation, fd, events, SOURCE_SESSION | (uint64_t)slot << 8 | (uint64_t)kind << 16);
}

void loop_watch(int fd, unsigned slot, enum watch kind)
{
	watch_session(EPOLL_CTL_ADD, fd, slot, kind);
}

void loop_watch_again(int fd, unsigned slot, enum watch kind)
{
	watch_session(EPOLL_CTL_MOD, fd, slot, kind);
}

static void reap_children(void)
{
	struct signalfd_siginfo info;
	if (read(children_fd, &info, sizeof info) < 0)
		return;
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		session_reaped(pid, status);
}

/* Frames of a session that exists. Others are dropped: they crossed its last frame on the way. */
static bool dispatch_to_session(const struct frame *frame)
{
	struct session *session = session_find(frame->session);
	if (session == NULL)
		return true;
	if (frame->type == HOST_PUT_DATA)
		return session->kind == SESSION_PUT && put_data(session, frame);
	if (session->kind != SESSION_EXEC)
		return false;
	if (frame->type == HOST_EXEC_SPEC)
		return exec_spec(session, frame);
	if (frame->type == HOST_STDIN)
		return exec_stdin(session, frame);
	return exec_signal(session, frame);
}

/* False: malformed. */
static bool dispatch(const struct frame *frame)
{
	switch (frame->type) {
	case HOST_SYNC:
		return steps_sync(frame);
	case HOST_MOUNT:
		return steps_mount(frame);
	case HOST_FREEZE:
		return steps_freeze(frame);
	case HOST_PUT_OPEN:
		return put_open(frame);
	case HOST_EXEC_OPEN:
		return exec_open(frame);
	case HOST_INDEX:
		return index_open(frame);
	case HOST_RELEASE:
		return steps_release(frame);
	case HOST_MERGE:
		return merge_open(frame);
	case HOST_WINDOW:
		return frame->length == 8 &&
		       session_grant(frame->session, get_u32(frame->payload), get_u32(frame->payload + 4));
	case HOST_PUT_DATA:
	case HOST_EXEC_SPEC:
	case HOST_STDIN:
	case HOST_SIGNAL:
		return dispatch_to_session(frame);
	default:
		return false;
	}
}

static void say_hello(void)
{
	struct utsname name;
	uint8_t payload[8 + sizeof name.release];
	uname(&name);
	put_u32(payload, PROTOCOL_VERSION);
	put_u32(payload + 4, 0);
	size_t length = strlen(name.release);
	memcpy(payload + 8, name.release, length);
	frame_send(AGENT_HELLO, 0, payload, 8 + length);
}

/* Greets a host that is there. */
static void meet_host(void)
{
	line_readable = true;
	watch(EPOLL_CTL_ADD, transport.fd, EPOLLIN | EPOLLOUT | EPOLLET, SOURCE_TRANSPORT);
	say_hello();
	frame_flush();
}

static void await_host(void)
{
	if (transport.fd < 0 && transport_accept(&transport))
		meet_host();
}

/* A host that leaves while something is under way will not come back for it. */
static void lose_host(void)
{
	if (!transport.listens || session_any())
		platform_end(0);
	transport_disconnect(&transport);
	frame_reset();
	await_host();
}

/* Takes at most one frame; true when something moved. */
static bool take_frame(void)
{
	struct frame frame;
	enum frame_status status = frame_next(&frame);
	if (status == FRAME_NONE && line_readable) {
		enum frame_fill fill = frame_fill();
		if (fill == FILL_CLOSED) {
			lose_host();
			return true;
		}
		if (fill == FILL_NOTHING) {
			line_readable = false;
			return false;
		}
		/* More may be waiting behind what was read, and no new edge would tell. */
		status = frame_next(&frame);
		if (status == FRAME_NONE)
			return true;
	}
	if (status == FRAME_BAD)
		log_fatal("malformed frame: type %u, %u bytes", frame.type, frame.length);
	/* A request is taken when its answer fits: a host that does not read stops being read. */
	if (status == FRAME_NONE || !frame_can_answer())
		return false;
	if (!dispatch(&frame))
		log_fatal("malformed payload: type %u, %u bytes", frame.type, frame.length);
	frame_done(&frame);
	return true;
}

static int wait_ms(bool moved, uint64_t now_ns)
{
	if (moved)
		return 0;
	uint64_t deadline = session_deadline();
	uint64_t wait = UINT64_MAX;
	if (deadline != UINT64_MAX)
		wait = deadline > now_ns ? (deadline - now_ns + 999999) / 1000000 : 0;
	if (frame_pending() && wait > RETRY_MS)
		wait = RETRY_MS;
	if (wait == UINT64_MAX)
		return -1;
	return wait < 3600000 ? (int)wait : 3600000;
}

static _Noreturn void loop_run(void)
{
	struct epoll_event events[EVENTS_COUNT_MAX];
	for (bool moved = true;;) {
		int count = epoll_wait(loop_fd, events, EVENTS_COUNT_MAX, wait_ms(moved, loop_now()));
		for (int i = 0; i < count; i++) {
			uint64_t key = events[i].data.u64;
			enum source source = (enum source)(key & 0xff);
			if (source == SOURCE_CHILDREN)
				reap_children();
			else if (source == SOURCE_SESSION)
				session_ready((unsigned)(key >> 8 & 0xff), (enum watch)(key >> 16));
			else if (source == SOURCE_LISTENER)
				await_host();
			else
				line_readable = true;
		}
		moved = take_frame();
		moved |= session_pump(loop_now());
		bool pending = frame_pending();
		if (!frame_flush())
			lose_host();
		/* What waited for room in the output buffer can go on. */
		moved |= pending && !frame_pending();
	}
}

int main(int argc, char **argv)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	platform_start(argc, argv, &transport);
	frame_open(&transport);
	loop_fd = epoll_create1(EPOLL_CLOEXEC);
	children_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (loop_fd < 0 || children_fd < 0)
		log_fatal("epoll: %s", strerror(errno));
	watch(EPOLL_CTL_ADD, children_fd, EPOLLIN, SOURCE_CHILDREN);
	if (transport.listens)
		watch(EPOLL_CTL_ADD, transport.listener, EPOLLIN | EPOLLET, SOURCE_LISTENER);
	else
		meet_host();
	/* Before the first request is read: an answered SYNC means that the machine is whole. */
	platform_ready();
	loop_run();
}
