/* Moves a reaper into the merged root and into its namespaces. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../platform.h"
#include "../resolve.h"
#include "guest.h"

#define QUIET (MS_NOSUID | MS_NODEV | MS_NOEXEC)

bool platform_enter_root(const char *hostname, struct problem *problem)
{
	/* Not earlier: a cgroup namespace is rooted in the cgroup of the process that creates it. */
	if (unshare(CLONE_NEWCGROUP) != 0)
		return problem_set(problem, errno, "cgroup namespace");
	if (hostname[0] != '\0' && sethostname(hostname, strlen(hostname)) != 0)
		return problem_set(problem, errno, "hostname %s", hostname);
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		return problem_set(problem, errno, "private mounts");
	/* Removes the cover that root_furnish mounted, so that /proc/mounts lists only one /proc. */
	umount2("/r/proc", MNT_DETACH);
	if (!root_mount("/r", "proc", "proc", QUIET, NULL, problem))
		return false;
	if (!root_mount("/r", "sys/fs/cgroup", "cgroup2", QUIET | MS_RDONLY, NULL, problem))
		return false;
	/* With two equal arguments, the old root is stacked over the new one, and then unmounted. */
	if (chdir("/r") != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 ||
	    chdir("/") != 0)
		return problem_set(problem, errno, "change of root");
	return true;
}

bool platform_join(int pidfd, struct problem *problem)
{
	/* The cgroup namespace is not joined: it is rooted in the cgroup that this command is charged to. */
	if (unshare(CLONE_NEWCGROUP) != 0)
		return problem_set(problem, errno, "cgroup namespace");
	/* Joining the mount namespace also changes root and working directory. The pid namespace applies only to children. */
	if (setns(pidfd, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET) != 0)
		return problem_set(problem, errno, "namespaces of the command");
	return true;
}

bool platform_visit(int pidfd, struct problem *problem)
{
	/* Not the pid namespace: no program of the guest sees the visitor, and none can trace it. */
	return setns(pidfd, CLONE_NEWNS) == 0 || problem_set(problem, errno, "mounts of the command");
}

int platform_open_terminal(struct problem *problem)
{
	int root = open("/r", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int fd = root < 0 ? -1 : resolve_open(root, "dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK, 0, RESOLVE_NO_SYMLINKS);
	if (fd < 0)
		problem_set(problem, errno, "terminal");
	close(root);
	return fd;
}

void platform_become_ordinary(void)
{
	/* /proc belongs to the command here. The fork has reset the scheduler. */
	write_file("/proc/self/oom_score_adj", "0");
}
