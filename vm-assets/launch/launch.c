/*
 * launch: the jail of a virtual machine monitor, and of the tools that read images.
 *
 * Joins the cgroups, makes a pid namespace, and forks. The child (pid 1 there) makes the other
 * namespaces, pivots into a root of its own, gives up its privileges and most of the kernel's calls,
 * and becomes the program. The parent gives up its privileges as well, but for what attributes.h
 * tells of, waits, and passes the exit status on. Each dies with the one above it. Whatever fails is
 * told on stderr with the step's name, and the exit code is 125.
 */
#include <errno.h>
#include <fcntl.h>
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
#include "roots.h"

enum { EXIT_SIGNAL_BASE = 128 };

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
		below(path, options->cgroups[i], "cgroup.procs");
		write_text(path, "0");
	}
}

/* A change of credentials clears the parent-death signal, so this comes after it. */
static void die_with_parent(void)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		fail("pdeathsig", "");
}

/*
 * The child cannot see its parent's pid across the pid namespace. The parent alone holds the other
 * end of `channel`: a hang-up means that it died before the death signal was set.
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

	if (options->mode == MODE_VM)
		enter_vm_root(options);
	else
		enter_tool_root(options);
	set_limits(options);
	drop_privileges(options, options->capabilities);
	die_with_parent();
	check_parent_alive(channel);
	listener = install_filter(options);
	if (listener >= 0)
		hand_over(channel, listener);
	close_descriptors(options->keep, options->keep_count);
	if (options->mode == MODE_VM)
		execve(options->program[0], options->program, options->variables);
	else
		execvp(options->program[0], options->program);
	fail("exec", options->program[0]);
	abort();
}

static _Noreturn void wait_for(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			fail("wait", "");
	}
	if (WIFEXITED(status))
		_exit(WEXITSTATUS(status));
	/* Dying of the same signal would dump core or stop: the code a shell would show is enough. */
	_exit(EXIT_SIGNAL_BASE + WTERMSIG(status));
}

int main(int argc, char **argv)
{
	static struct options options;
	int channel[2];
	pid_t child;

	parse_options(&options, argc, argv);
	if (getppid() != options.parent) {
		errno = ESRCH;
		fail("parent", "");
	}
	join_cgroups(&options);
	write_text("/proc/self/oom_score_adj", options.oom_score_adj);
	/* Only the child leaves the host's mounts: a waiting copy of them would keep file systems busy. */
	if (unshare(CLONE_NEWPID) != 0)
		fail("unshare", "pid");
	make_channel(channel);
	child = fork();
	if (child < 0)
		fail("fork", "");
	if (child == 0) {
		close(channel[1]);
		become_program(&options, channel[0]);
	}
	close(channel[0]);
	close_descriptors(&channel[1], 1);
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
	wait_for(child);
}
