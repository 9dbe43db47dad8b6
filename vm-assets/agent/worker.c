#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "flow.h"
#include "session.h"

struct worker {
	struct child child;
	struct outflow out;
};

static struct worker workers[TASKS_COUNT_MAX];
static const struct session_kind worker_kind;

static struct worker *worker_of(const struct session *session)
{
	return &workers[session->slot];
}

static bool start(const struct session *session, const struct work *work, struct problem *problem)
{
	struct worker *worker = worker_of(session);
	int out[2] = {-1, -1};
	if (work->streams && (pipe2(out, O_CLOEXEC) != 0 || fcntl(out[0], F_SETFL, O_NONBLOCK) != 0))
		return problem_set(problem, errno, "pipe of the %s", work->name);
	if (work->streams)
		outflow_open(&worker->out, out[0], STREAM_STDOUT, WINDOW_BYTES_INITIAL);
	bool started = child_start(&worker->child, work, out[1], problem);
	if (out[1] >= 0)
		close(out[1]);
	if (started && work->streams)
		session_watch(session, out[0], WATCH_OUTPUT);
	return started;
}

void worker_open(uint32_t id, const struct work *work)
{
	struct session *session = session_open(id, &worker_kind);
	struct problem problem;
	if (session != NULL) {
		struct worker *worker = worker_of(session);
		memset(worker, 0, sizeof *worker);
		child_clear(&worker->child);
		worker->out.fd = -1;
		if (!start(session, work, &problem))
			session_fail(session, &problem);
	}
	if (work->directory >= 0)
		close(work->directory);
}

/* Workers accept no frames but credit. */
static bool worker_take(struct session *session, const struct frame *frame)
{
	(void)session;
	(void)frame;
	return false;
}

static bool worker_grant(struct session *session, uint32_t stream, uint32_t bytes)
{
	struct outflow *out = &worker_of(session)->out;
	if (stream != STREAM_STDOUT || out->stream != STREAM_STDOUT)
		return false;
	return outflow_grant(out, bytes);
}

static void worker_ready(struct session *session, enum watch watch)
{
	if (watch == WATCH_OUTPUT)
		worker_of(session)->out.readable = true;
}

static bool worker_reaped(struct session *session, pid_t pid, int status, const struct rusage *usage)
{
	(void)status;
	(void)usage;
	return child_reaped(&worker_of(session)->child, pid);
}

static bool worker_pump(struct session *session, uint64_t now_ns)
{
	struct worker *worker = worker_of(session);
	bool moved = outflow_pump(&worker->out, session, WATCH_OUTPUT, now_ns);
	if (worker->child.pid != 0 || worker->out.fd >= 0 || !frame_can_answer())
		return moved;
	uint64_t count;
	struct problem problem;
	if (child_outcome(&worker->child, &count, &problem))
		session_done(session, count);
	else
		session_fail(session, &problem);
	return true;
}

static uint64_t worker_deadline(const struct session *session)
{
	return outflow_deadline(&worker_of(session)->out);
}

static void worker_lost(struct session *session)
{
	struct worker *worker = worker_of(session);
	outflow_close(&worker->out);
	if (worker->child.pid != 0)
		kill(worker->child.pid, SIGKILL);
}

static void worker_close(struct session *session)
{
	struct worker *worker = worker_of(session);
	outflow_close(&worker->out);
	child_close(&worker->child);
}

static const struct session_kind worker_kind = {
	.class = SESSION_TASK,
	.take = worker_take,
	.grant = worker_grant,
	.ready = worker_ready,
	.pump = worker_pump,
	.deadline = worker_deadline,
	.reaped = worker_reaped,
	.lost = worker_lost,
	.close = worker_close,
};
