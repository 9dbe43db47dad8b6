#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../child.h"
#include "../clock.h"
#include "../exec.h"
#include "../flow.h"
#include "../platform.h"
#include "../protocol.h"
#include "../rings.h"
#include "../session.h"
#include "request.h"
#include "visit.h"

/* A visitor gets this time to remove its temporary file. */
#define TERMINATE_NS 1000000000ULL

struct file {
	struct child child;
	struct outflow out;
	struct inflow in;
	bool writes;
	struct process *host;
	uint32_t target;
	int ended; /* errno of the answer when it was ended before it was over; 0: it was not */
	uint64_t kill_ns; /* time of the second, harder attempt to end it; UINT64_MAX: never */
};

/* Those of watches are behind the others: they have no input, and so no ring. */
static struct file files[FILES_COUNT_MAX + WATCHES_COUNT_MAX];
static const struct session_kind file_kind;
static const struct session_kind watch_kind;

static struct file *file_of(const struct session *session)
{
	return &files[session->slot + (session->kind->class == SESSION_WATCH ? FILES_COUNT_MAX : 0)];
}

static bool open_pipe(int ends[2], int ours)
{
	return pipe2(ends, O_CLOEXEC) == 0 && fcntl(ends[ours], F_SETFL, O_NONBLOCK) == 0;
}

static bool start(const struct session *session, const struct frame *frame, struct problem *problem)
{
	struct file *file = file_of(session);
	int out[2] = {-1, -1};
	int in[2] = {-1, -1};
	if (!open_pipe(out, 0) || (file->writes && !open_pipe(in, 1)))
		problem_set(problem, errno, "pipes of the visitor");
	else if ((file->host = exec_host(file->target)) == NULL)
		problem_set(problem, ESRCH, "target process %u", file->target);
	bool started = file->host != NULL;
	/* The pid is valid, because the agent has not reaped that reaper yet. */
	int reaper = started ? (int)syscall(SYS_pidfd_open, file->host->reaper, 0) : -1;
	if (started && reaper < 0)
		started = problem_set(problem, errno, "target process");
	const struct work work = {
		.name = "visitor",
		.run = visit,
		.fork = platform_fork_visitor,
		.number = frame->length,
		.argument = frame->payload,
		.directory = reaper,
		.input = file->writes ? in[0] : 0,
		.streams = true,
	};
	started = started && child_start(&file->child, &work, out[1], problem);
	const int theirs[] = {out[1], in[0], reaper};
	for (int i = 0; i < 3; i++)
		if (theirs[i] >= 0)
			close(theirs[i]);
	outflow_open(&file->out, out[0], STREAM_STDOUT, WINDOW_BYTES_INITIAL);
	inflow_open(&file->in, in[1], STREAM_STDIN, file->writes ? rings_of_file(session->slot) : NULL);
	if (!started) {
		file->host = NULL;
		return false;
	}
	file->host->visitor_count++;
	session_watch(session, out[0], WATCH_OUTPUT);
	if (file->writes)
		session_watch(session, in[1], WATCH_INPUT);
	return true;
}

bool file_open(const struct frame *frame)
{
	if (!request_is_whole(frame))
		return false;
	struct session *session =
		session_open(frame->session, request_op(frame) == FILE_OP_WATCH ? &watch_kind : &file_kind);
	if (session == NULL)
		return true;
	struct file *file = file_of(session);
	struct problem problem;
	memset(file, 0, sizeof *file);
	child_clear(&file->child);
	file->writes = request_op(frame) == FILE_OP_WRITE;
	file->target = request_target(frame);
	file->kill_ns = UINT64_MAX;
	if (!start(session, frame, &problem))
		session_fail(session, &problem);
	return true;
}

/* Ends the visitor. The answer follows its death, so that afterwards nothing of the request happens any more. */
static void end(struct file *file, int error, uint64_t now_ns)
{
	if (file->ended != 0)
		return;
	file->ended = error;
	file->kill_ns = now_ns + TERMINATE_NS;
	outflow_close(&file->out);
	if (file->child.pid != 0)
		kill(file->child.pid, SIGTERM);
}

static bool file_take(struct session *session, const struct frame *frame)
{
	struct file *file = file_of(session);
	if (frame->type == HOST_FILE_END) {
		end(file, ECANCELED, clock_now());
		return true;
	}
	if (frame->type == HOST_FILE_SYNC && session->kind == &watch_kind) {
		if (file->child.pid != 0 && file->ended == 0)
			kill(file->child.pid, WATCH_SYNC_SIGNAL);
		return true;
	}
	if (frame->type != HOST_STDIN || !file->writes)
		return false;
	return frame->length > 0 ? inflow_take(&file->in, frame->payload, frame->length) : inflow_end(&file->in);
}

static bool file_grant(struct session *session, uint32_t stream, uint32_t bytes)
{
	if (stream != STREAM_STDOUT)
		return false;
	return outflow_grant(&file_of(session)->out, bytes);
}

static void file_ready(struct session *session, enum watch watch)
{
	struct file *file = file_of(session);
	if (watch == WATCH_OUTPUT)
		file->out.readable = true;
	else
		file->in.writable = true;
}

static bool file_reaped(struct session *session, pid_t pid, int status, const struct rusage *usage)
{
	struct file *file = file_of(session);
	(void)status;
	(void)usage;
	if (!child_reaped(&file->child, pid))
		return false;
	file->out.hold_ns = 0;
	return true;
}

static bool file_pump(struct session *session, uint64_t now_ns)
{
	struct file *file = file_of(session);
	bool moved = false;
	if (!process_can_host(file->host))
		end(file, ESRCH, now_ns);
	if (file->ended == 0) {
		moved = outflow_pump(&file->out, session, WATCH_OUTPUT, now_ns);
		/* Of a write that was ended the rest is not taken: its end could be mistaken for the end of the content. */
		moved |= inflow_pump(&file->in, session->id);
	} else if (file->child.pid != 0 && now_ns >= file->kill_ns) {
		file->kill_ns = UINT64_MAX;
		kill(file->child.pid, SIGKILL);
	}
	if (file->child.pid != 0 || file->out.fd >= 0 || !frame_can_answer())
		return moved;
	uint64_t count;
	struct problem problem;
	if (file->ended == ECANCELED)
		problem_set(&problem, ECANCELED, "request");
	else if (file->ended != 0)
		problem_set(&problem, file->ended, "target process %u", file->target);
	else if (child_outcome(&file->child, &count, &problem)) {
		session_done(session, count);
		return true;
	}
	session_fail(session, &problem);
	return true;
}

static uint64_t file_deadline(const struct session *session)
{
	const struct file *file = file_of(session);
	uint64_t deadline = outflow_deadline(&file->out);
	return file->child.pid != 0 && file->kill_ns < deadline ? file->kill_ns : deadline;
}

static void file_lost(struct session *session)
{
	end(file_of(session), ECANCELED, clock_now());
}

static void file_close(struct session *session)
{
	struct file *file = file_of(session);
	if (file->host != NULL)
		file->host->visitor_count--;
	file->host = NULL;
	inflow_release(&file->in);
	outflow_close(&file->out);
	child_close(&file->child);
}

#define OPERATIONS \
	.take = file_take, .grant = file_grant, .ready = file_ready, .pump = file_pump, .deadline = file_deadline, \
	.reaped = file_reaped, .lost = file_lost, .close = file_close

static const struct session_kind file_kind = {.class = SESSION_FILE, OPERATIONS};
static const struct session_kind watch_kind = {.class = SESSION_WATCH, OPERATIONS};
