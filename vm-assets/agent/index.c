#include "index.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bytes.h"
#include "loop.h"
#include "platform.h"
#include "protocol.h"
#include "session.h"
#include "steps.h"
#include "walk.h"

static _Noreturn void child_run(int root, int out, int control, unsigned disk)
{
	/* 0..2 stay as they are: the agent's own, never the host's stream. */
	if (dup2(root, 3) < 0 || dup2(out, 4) < 0 || dup2(control, 5) < 0)
		_exit(1);
	syscall(SYS_close_range, 6U, ~0U, 0);
	struct report report = {.kind = REPORT_DONE};
	int device = disk == INDEX_DISK_SCRATCH ? -1 : platform_open_layer(disk);
	if (!walk_disk(3, device, 4, &report.count, &report.problem))
		report.kind = REPORT_FAILED;
	report_send(5, &report);
	_exit(0);
}

static bool start(struct session *session, const char *path, unsigned disk, struct problem *problem)
{
	struct index *index = &session->index;
	int out[2];
	int control[2];
	int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return problem_set(problem, errno, "directory %s", path);
	/* Above the numbers that the child gives its descriptors, so that no dup2 closes one of them. */
	int high = fcntl(root, F_DUPFD_CLOEXEC, 10);
	close(root);
	if (high < 0 || pipe2(out, O_CLOEXEC) != 0) {
		problem_set(problem, errno, "pipe of the index");
		close(high);
		return false;
	}
	if (!report_pair(control) || fcntl(out[0], F_SETFL, O_NONBLOCK) != 0) {
		problem_set(problem, errno, "socket of the index");
		close(out[0]);
		close(out[1]);
		close(high);
		return false;
	}
	pid_t pid = fork();
	if (pid == 0)
		child_run(high, fcntl(out[1], F_DUPFD_CLOEXEC, 10), fcntl(control[1], F_DUPFD_CLOEXEC, 10), disk);
	int error = errno;
	close(high);
	close(out[1]);
	close(control[1]);
	index->control = control[0];
	outflow_open(&index->out, out[0], STREAM_STDOUT);
	if (pid < 0)
		return problem_set(problem, error, "fork for the index");
	index->child = pid;
	loop_watch(index->control, session->slot, WATCH_CONTROL);
	loop_watch(out[0], session->slot, WATCH_STDOUT);
	return true;
}

bool index_open(const struct frame *frame)
{
	if (frame->length != 2)
		return false;
	unsigned disk = get_u16(frame->payload);
	bool scratch = disk == INDEX_DISK_SCRATCH;
	if (!scratch && disk >= LAYERS_COUNT_MAX)
		return false;
	if (scratch ? steps_disks() != DISKS_FROZEN : disk >= steps_layers()) {
		frame_send_error(frame->session, ENXIO, scratch ? "the scratch is not frozen" : "no such layer");
		return true;
	}
	struct session *session = session_open(frame->session, SESSION_INDEX);
	if (session == NULL)
		return true;
	session->index.control = -1;
	session->index.out.fd = -1;
	char path[PATH_MAX];
	struct problem problem;
	if (scratch)
		snprintf(path, sizeof path, "%s/s/upper", platform_prefix());
	else
		snprintf(path, sizeof path, "%s/l/%02u/upper", platform_prefix(), disk);
	if (!start(session, path, disk, &problem)) {
		frame_send_error(session->id, problem.error, "%s", problem.text);
		session_close(session);
	}
	return true;
}

bool index_pump(struct session *session, uint64_t now_ns)
{
	struct index *index = &session->index;
	bool moved = session_pump_stream(session, &index->out, WATCH_STDOUT, now_ns);
	if (!index->reported && report_receive(index->control, &index->report) != REPORT_NONE)
		index->reported = true;
	if (index->child != 0 || index->out.fd >= 0 || !frame_can_answer())
		return moved;
	if (!index->reported)
		frame_send_error(session->id, ECHILD, "the index walk died");
	else if (index->report.kind == REPORT_DONE)
		frame_send_done(session->id, index->report.count);
	else
		frame_send_error(session->id, index->report.problem.error, "%s", index->report.problem.text);
	session_close(session);
	return true;
}

void index_close(struct index *index)
{
	outflow_close(&index->out);
	if (index->control >= 0)
		close(index->control);
	index->control = -1;
}
