#include "quiesce.h"

#include <errno.h>
#include <stddef.h>

#include "bytes.h"
#include "child.h"
#include "clock.h"
#include "log.h"
#include "platform.h"
#include "protocol.h"
#include "session.h"
#include "steps.h"
#include "worker.h"

enum state { STATE_NONE, STATE_STOPPING, STATE_QUIESCED, STATE_THAWING };

/* The state of the scratch. Child processes change it, because the kernel may take long. */
static struct {
	enum state state;
	struct child child;
	uint64_t limit_ns;
	uint64_t quiesced_ns;
	uint64_t deadline_ns;
	bool asked; /* the host requested the end */
	bool cancelled; /* a process must be killed */
	int error; /* why it ends, if not on request */
} quiesce;

static const struct session_kind quiesce_kind;

static bool run_flush(const struct work *work, int out, uint64_t *count, struct problem *problem)
{
	(void)work;
	(void)out;
	*count = 0;
	return platform_flush(problem);
}

static bool run_quiesce(const struct work *work, int out, uint64_t *count, struct problem *problem)
{
	(void)work;
	(void)out;
	*count = 0;
	return platform_quiesce(problem);
}

static bool run_thaw(const struct work *work, int out, uint64_t *count, struct problem *problem)
{
	(void)work;
	(void)out;
	*count = 0;
	return platform_thaw(problem);
}

static const struct work quiesce_work = {.name = "quiescing", .run = run_quiesce, .directory = -1};
static const struct work thaw_work = {.name = "thawing", .run = run_thaw, .directory = -1};

/* Both requests need a scratch that commands can write to. */
static bool check(const struct frame *frame)
{
	if (steps_disks() == DISKS_STATE_ROOT)
		return true;
	frame_send_error(frame->session, ENXIO, "no root file system is mounted");
	return false;
}

bool quiesce_flush(const struct frame *frame)
{
	if (check(frame))
		worker_open(frame->session, &(struct work){.name = "flush", .run = run_flush, .directory = -1});
	return true;
}

bool quiesce_open(const struct frame *frame)
{
	uint32_t limit_ms = get_u32(frame->payload);
	if (limit_ms == 0 || limit_ms > QUIESCE_MS_MAX)
		return false;
	if (!check(frame))
		return true;
	/* Putting a file would make the agent wait for its own thaw. A visitor that writes waits by itself. */
	if (session_count(SESSION_TASK) > 0) {
		frame_send_error(frame->session, EBUSY, "requests are under way");
		return true;
	}
	struct session *session = session_open(frame->session, &quiesce_kind);
	if (session == NULL)
		return true;
	struct problem problem;
	child_clear(&quiesce.child);
	quiesce.asked = quiesce.cancelled = false;
	quiesce.error = 0;
	quiesce.limit_ns = limit_ms * 1000000ULL;
	if (child_start(&quiesce.child, &quiesce_work, -1, &problem)) {
		quiesce.state = STATE_STOPPING;
		return true;
	}
	session_fail(session, &problem);
	return true;
}

bool quiesce_alive(void)
{
	return quiesce.state != STATE_NONE;
}

void quiesce_cancel(void)
{
	quiesce.cancelled = true;
}

static bool quiesce_take(struct session *session, const struct frame *frame)
{
	(void)session;
	if (frame->type != HOST_THAW || quiesce.asked)
		return false;
	quiesce.asked = true;
	return true;
}

static bool quiesce_reaped(struct session *session, pid_t pid, int status, const struct rusage *usage)
{
	(void)session;
	(void)status;
	(void)usage;
	return child_reaped(&quiesce.child, pid);
}

/* Handles the end of the child that stopped the writes, or failed to. */
static bool finish_quiescing(struct session *session, uint64_t now_ns)
{
	uint64_t count;
	struct problem problem;
	if (!child_outcome(&quiesce.child, &count, &problem)) {
		session_fail(session, &problem);
		return true;
	}
	child_close(&quiesce.child);
	quiesce.state = STATE_QUIESCED;
	quiesce.quiesced_ns = now_ns;
	quiesce.deadline_ns = now_ns + quiesce.limit_ns;
	frame_send(AGENT_QUIESCED, session->id, NULL, 0);
	return true;
}

static bool start_thaw(uint64_t now_ns)
{
	struct problem problem;
	bool late = now_ns >= quiesce.deadline_ns;
	if (!quiesce.asked && !quiesce.cancelled && !late)
		return false;
	if (!quiesce.asked)
		quiesce.error = quiesce.cancelled ? ECANCELED : ETIMEDOUT;
	/* Without a thaw no process in the machine can end, and without memory for a child there can be no thaw. */
	if (!child_start(&quiesce.child, &thaw_work, -1, &problem))
		log_fatal("%s", problem.text);
	quiesce.state = STATE_THAWING;
	return true;
}

static bool finish(struct session *session, uint64_t now_ns)
{
	uint64_t count;
	struct problem problem;
	if (!child_outcome(&quiesce.child, &count, &problem))
		/* EINVAL: root in the guest has thawed the scratch before. */
		frame_send_problem(session->id, &problem);
	else if (quiesce.error != 0)
		frame_send_error(session->id, quiesce.error, quiesce.error == ETIMEDOUT ? "the time was up" : "a process was killed");
	else
		frame_send_done(session->id, now_ns - quiesce.quiesced_ns);
	session_close(session);
	return true;
}

static bool quiesce_pump(struct session *session, uint64_t now_ns)
{
	if (quiesce.child.pid != 0 || !frame_can_answer())
		return false;
	if (quiesce.state == STATE_STOPPING)
		return finish_quiescing(session, now_ns);
	if (quiesce.state == STATE_QUIESCED)
		return start_thaw(now_ns);
	return finish(session, now_ns);
}

static uint64_t quiesce_deadline(const struct session *session)
{
	(void)session;
	return quiesce.state == STATE_QUIESCED ? quiesce.deadline_ns : UINT64_MAX;
}

static void quiesce_lost(struct session *session)
{
	(void)session;
	quiesce.asked = true;
}

static void quiesce_close(struct session *session)
{
	(void)session;
	child_close(&quiesce.child);
	quiesce.state = STATE_NONE;
}

static const struct session_kind quiesce_kind = {
	.class = SESSION_TASK,
	.take = quiesce_take,
	.pump = quiesce_pump,
	.deadline = quiesce_deadline,
	.reaped = quiesce_reaped,
	.lost = quiesce_lost,
	.close = quiesce_close,
};
