#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "flow.h"
#include "report.h"
#include "session.h"

/* Descriptors of the child. 0..2 stay as they are: the agent's own, never the host's stream. */
#define CONTROL_FD 3
#define OUT_FD 4
#define DIRECTORY_FD 5

struct worker {
	const char *name;
	pid_t child; /* 0: reaped */
	int control;
	struct outflow out;
	bool reported;
	struct report report;
};

static struct worker workers[TASKS_COUNT_MAX];
static const struct session_kind worker_kind;

static struct worker *worker_of(const struct session *session)
{
	return &workers[session->slot];
}

static _Noreturn void child_run(const struct work *work, int control, int out)
{
	const int from[] = {control, out, work->directory};
	int high[3];
	/* Above all numbers that are given first, so that none takes the place of another. */
	for (int i = 0; i < 3; i++)
		high[i] = from[i] < 0 ? -1 : fcntl(from[i], F_DUPFD, DIRECTORY_FD + 1);
	for (int i = 0; i < 3; i++)
		if (from[i] >= 0 && dup2(high[i], CONTROL_FD + i) < 0)
			_exit(1);
	syscall(SYS_close_range, (unsigned)DIRECTORY_FD + 1, ~0U, 0);
	struct work mine = *work;
	mine.directory = work->directory < 0 ? -1 : DIRECTORY_FD;
	struct report report = {.kind = REPORT_DONE};
	if (!mine.run(&mine, out < 0 ? -1 : OUT_FD, &report.count, &report.problem))
		report.kind = REPORT_FAILED;
	report_send(CONTROL_FD, &report);
	_exit(0);
}

static bool start(const struct session *session, const struct work *work, struct problem *problem)
{
	struct worker *worker = worker_of(session);
	int control[2];
	int out[2] = {-1, -1};
	if (work->streams && (pipe2(out, O_CLOEXEC) != 0 || fcntl(out[0], F_SETFL, O_NONBLOCK) != 0))
		return problem_set(problem, errno, "pipe of the %s", work->name);
	if (work->streams)
		outflow_open(&worker->out, out[0], STREAM_STDOUT, WINDOW_BYTES_INITIAL);
	pid_t pid = -1;
	if (report_pair(control)) {
		worker->control = control[0];
		pid = fork();
		if (pid == 0)
			child_run(work, control[1], out[1]);
		int error = errno;
		close(control[1]);
		errno = error;
	}
	if (pid < 0)
		problem_set(problem, errno, "start of the %s", work->name);
	if (out[1] >= 0)
		close(out[1]);
	if (pid < 0)
		return false;
	worker->child = pid;
	session_watch(session, worker->control, WATCH_CONTROL);
	if (work->streams)
		session_watch(session, out[0], WATCH_OUTPUT);
	return true;
}

void worker_open(uint32_t id, const struct work *work)
{
	struct session *session = session_open(id, &worker_kind);
	struct problem problem;
	if (session != NULL) {
		struct worker *worker = worker_of(session);
		memset(worker, 0, sizeof *worker);
		worker->name = work->name;
		worker->control = worker->out.fd = -1;
		if (!start(session, work, &problem)) {
			frame_send_error(id, problem.error, "%s", problem.text);
			session_close(session);
		}
	}
	if (work->directory >= 0)
		close(work->directory);
}

/* No frame but credit is for a worker. */
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
	outflow_grant(out, bytes);
	return true;
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
	if (worker_of(session)->child != pid)
		return false;
	worker_of(session)->child = 0;
	return true;
}

static bool worker_pump(struct session *session, uint64_t now_ns)
{
	struct worker *worker = worker_of(session);
	bool moved = outflow_pump(&worker->out, session, WATCH_OUTPUT, now_ns);
	if (!worker->reported && report_receive(worker->control, &worker->report) != REPORT_NONE)
		worker->reported = true;
	if (worker->child != 0 || worker->out.fd >= 0 || !frame_can_answer())
		return moved;
	if (!worker->reported)
		frame_send_error(session->id, ECHILD, "the %s died", worker->name);
	else if (worker->report.kind == REPORT_DONE)
		frame_send_done(session->id, worker->report.count);
	else
		frame_send_error(session->id, worker->report.problem.error, "%s", worker->report.problem.text);
	session_close(session);
	return true;
}

static uint64_t worker_deadline(const struct session *session)
{
	return outflow_deadline(&worker_of(session)->out);
}

static void worker_close(struct session *session)
{
	struct worker *worker = worker_of(session);
	outflow_close(&worker->out);
	if (worker->control >= 0)
		close(worker->control);
	worker->control = -1;
}

static const struct session_kind worker_kind = {
	.class = SESSION_TASK,
	.take = worker_take,
	.grant = worker_grant,
	.ready = worker_ready,
	.pump = worker_pump,
	.deadline = worker_deadline,
	.reaped = worker_reaped,
	.close = worker_close,
};
