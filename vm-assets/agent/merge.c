#include "merge.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loop.h"
#include "session.h"
#include "steps.h"
#include "union.h"

static _Noreturn void child_run(int control)
{
	/* 0..2 stay as they are: the agent's own, never the host's stream. */
	if (dup2(control, 3) < 0)
		_exit(1);
	syscall(SYS_close_range, 4U, ~0U, 0);
	struct report report = {.kind = REPORT_DONE};
	if (!union_layers(steps_layers(), &report.count, &report.problem))
		report.kind = REPORT_FAILED;
	report_send(3, &report);
	_exit(0);
}

static bool start(struct session *session, struct problem *problem)
{
	struct merge *merge = &session->merge;
	int control[2];
	if (!report_pair(control))
		return problem_set(problem, errno, "socket of the merge");
	pid_t pid = fork();
	if (pid == 0)
		child_run(control[1]);
	int error = errno;
	close(control[1]);
	merge->control = control[0];
	if (pid < 0)
		return problem_set(problem, error, "fork for the merge");
	merge->child = pid;
	loop_watch(merge->control, session->slot, WATCH_CONTROL);
	return true;
}

bool merge_open(const struct frame *frame)
{
	if (frame->length != 0)
		return false;
	if (!steps_check(frame->session, false))
		return true;
	if (steps_disks() != DISKS_BARE) {
		frame_send_error(frame->session, ENXIO, "no bare scratch is mounted");
		return true;
	}
	struct session *session = session_open(frame->session, SESSION_MERGE);
	if (session == NULL)
		return true;
	session->merge.control = -1;
	struct problem problem;
	if (!start(session, &problem)) {
		frame_send_error(session->id, problem.error, "%s", problem.text);
		session_close(session);
	}
	return true;
}

bool merge_pump(struct session *session)
{
	struct merge *merge = &session->merge;
	if (!merge->reported && report_receive(merge->control, &merge->report) != REPORT_NONE)
		merge->reported = true;
	if (merge->child != 0 || !frame_can_answer())
		return false;
	if (!merge->reported)
		frame_send_error(session->id, ECHILD, "the merge died");
	else if (merge->report.kind == REPORT_DONE)
		frame_send_done(session->id, merge->report.count);
	else
		frame_send_error(session->id, merge->report.problem.error, "%s", merge->report.problem.text);
	session_close(session);
	return true;
}

void merge_close(struct merge *merge)
{
	if (merge->control >= 0)
		close(merge->control);
	merge->control = -1;
}
