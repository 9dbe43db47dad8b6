/*
 * launch: builds the jail of a virtual machine monitor, of a tool that reads images, or of the process that connects to the
 * outside, and runs the program in it.
 *
 * The launcher joins the cgroups, makes a pid namespace and forks. The child, pid 1 in that namespace, makes the other
 * namespaces, pivots into a root of its own, drops its privileges and most system calls, and executes the program. The
 * parent drops its privileges as well, except for those that attributes.h describes, waits for the child and exits with
 * its status. Both die with their parents, until the daemon unties a monitor's launcher (report.c). A failure is written to
 * stderr with the name of the step, and the exit code is 125.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attributes.h"
#include "fail.h"
#include "filter.h"
#include "mounts.h"
#include "options.h"
#include "privileges.h"
#include "report.h"
#include "roots.h"

enum { EXIT_SIGNAL_BASE = 128, DESCRIPTORS_COUNT_MAX = 4 };

static void write_text(const char *path, const char *text)
{
	size_t length = strlen(text);
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		fail("open", path);
	if (write(fd, text, length) != (ssize_t)length)
		fail("write", path);
	close(fd);
}

static void join_cgroups(const struct options *options)
{
	char path[PATH_BYTES_MAX];

	for (size_t i = 0; i < options->cgroup_count; i++) {
		join_path(path, options->cgroups[i], "cgroup.procs");
		write_text(path, "0");
	}
}

/* To be called after a change of credentials, which clears the parent-death signal. */
static void die_with_parent(void)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		fail("pdeathsig", "");
}

/*
 * The parent's pid is not visible in the new pid namespace. Only the parent holds the other end of `channel`, so a hang-up
 * means that the parent died before the death signal was set.
 */
static void check_parent_alive(int channel)
{
	struct pollfd poller = { .fd = channel, .events = POLLIN };

	if (poll(&poller, 1, 0) != 0) {
		errno = ESRCH;
		fail("parent", "");
	}
}

static _Noreturn void become_program(struct options *options, int channel)
{
	int listener;

	switch (options->mode) {
	case MODE_VM:
		enter_vm_root(options);
		break;
	case MODE_TOOL:
		enter_tool_root(options);
		break;
	case MODE_GATE:
		enter_gate_root(options);
		break;
	}
	set_limits(options);
	drop_privileges(options, options->capabilities);
	die_with_parent();
	check_parent_alive(channel);
	listener = install_filter(options);
	if (listener >= 0)
		send_listener(channel, listener);
	close_descriptors(options->keep, options->keep_count);
	if (options->mode != MODE_TOOL)
		execve(options->program[0], options->program, options->variables);
	else
		execvp(options->program[0], options->program);
	fail("exec", options->program[0]);
	abort();
}

static _Noreturn void end_like(int status)
{
	if (WIFEXITED(status))
		_exit(WEXITSTATUS(status));
	/* The code that a shell reports. Dying of the same signal could dump core or stop. */
	_exit(EXIT_SIGNAL_BASE + WTERMSIG(status));
}

/* Keeps the descriptors of the list that are not -1. */
static void keep_only(int *list, size_t count)
{
	int kept[DESCRIPTORS_COUNT_MAX];
	size_t kept_count = 0;

	for (int above = STDERR_FILENO;;) {
		int next = INT_MAX;

		for (size_t i = 0; i < count; i++) {
			if (list[i] > above && list[i] < next)
				next = list[i];
		}
		if (next == INT_MAX)
			break;
		kept[kept_count++] = above = next;
	}
	close_descriptors(kept, kept_count);
}

int main(int argc, char **argv)
{
	static struct options options;
	int channel[2];
	int errors[2];
	pid_t child;

	parse_options(&options, argc, argv);
	if (getppid() != options.parent) {
		errno = ESRCH;
		fail("parent", "");
	}
	join_cgroups(&options);
	write_text("/proc/self/oom_score_adj", options.oom_score_adj);
	/* Only the child leaves the host's mount namespace: a copy of it in the parent would keep file systems busy. */
	if (unshare(CLONE_NEWPID) != 0)
		fail("unshare", "pid");
	make_channel(channel);
	open_errors(&options, errors);
	child = fork();
	if (child < 0)
		fail("fork", "");
	if (child == 0) {
		close(channel[1]);
		use_errors(errors);
		become_program(&options, channel[0]);
	}
	keep_only((int[]){ channel[1], errors[0], options.report, options.lease }, DESCRIPTORS_COUNT_MAX);
	if (chdir("/") != 0)
		fail("chdir", "/");
	drop_privileges(&options, options.attributes ? server_capabilities(options.capabilities) : 0);
	die_with_parent();
	if (getppid() != options.parent) {
		errno = ESRCH;
		fail("parent", "");
	}
	if (options.attributes) {
		install_server_filter();
		serve_attributes(channel[1], child);
	}
	end_like(tend(&options, child, errors[0]));
}
