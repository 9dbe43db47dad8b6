#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Descriptors of the child. It keeps 0 to 2 of the agent, which never are the host's stream. */
#define CONTROL_FD 3
#define OUT_FD 4
#define DIRECTORY_FD 5
#define INPUT_FD 6
#define INHERITED_COUNT 4

void child_clear(struct child *child)
{
	*child = (struct child){.control = -1};
}

static _Noreturn void run(const struct work *work, int control, int out)
{
	const int from[INHERITED_COUNT] = {control, out, work->directory, work->input == 0 ? -1 : work->input};
	int high[INHERITED_COUNT];
	/* First moved above all target numbers, so that none overwrites another. */
	for (int i = 0; i < INHERITED_COUNT; i++)
		high[i] = from[i] < 0 ? -1 : fcntl(from[i], F_DUPFD, INPUT_FD + 1);
	for (int i = 0; i < INHERITED_COUNT; i++)
		if (from[i] < 0 ? close(CONTROL_FD + i) != 0 && errno != EBADF : dup2(high[i], CONTROL_FD + i) < 0)
			_exit(1);
	syscall(SYS_close_range, (unsigned)INPUT_FD + 1, ~0U, 0);
	struct work mine = *work;
	mine.input = work->input == 0 ? 0 : INPUT_FD;
	mine.directory = work->directory < 0 ? -1 : DIRECTORY_FD;
	struct report report = {.kind = REPORT_DONE};
	if (!mine.run(&mine, out < 0 ? -1 : OUT_FD, &report.count, &report.problem))
		report.kind = REPORT_FAILED;
	report_send(CONTROL_FD, &report);
	_exit(0);
}

bool child_start(struct child *child, const struct work *work, int out, struct problem *problem)
{
	int control[2];
	child->name = work->name;
	if (!report_pair(control))
		return problem_set(problem, errno, "socket of the %s", work->name);
	pid_t pid = work->fork == NULL ? fork() : work->fork(problem);
	if (pid == 0)
		run(work, control[1], out);
	if (pid < 0 && work->fork == NULL)
		problem_set(problem, errno, "start of the %s", work->name);
	close(control[1]);
	if (pid < 0) {
		close(control[0]);
		return false;
	}
	child->pid = pid;
	child->control = control[0];
	return true;
}

bool child_reaped(struct child *child, pid_t pid)
{
	if (child->pid != pid)
		return false;
	child->pid = 0;
	return true;
}

bool child_outcome(const struct child *child, uint64_t *count, struct problem *problem)
{
	struct report report;
	enum report_kind kind = report_receive(child->control, &report);
	*count = report.count;
	if (kind == REPORT_DONE)
		return true;
	*problem = report.problem;
	return kind == REPORT_FAILED ? false : problem_set(problem, ECHILD, "the %s died", child->name);
}

void child_close(struct child *child)
{
	if (child->control >= 0)
		close(child->control);
	child->control = -1;
}
