/* Mounts that the merged root needs in addition to its files: /dev, /sys and a cover over /proc. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "../clock.h"
#include "../resolve.h"
#include "guest.h"

#define RELEASE_WAIT_NS 5000000000ULL
#define QUIET (MS_NOSUID | MS_NODEV | MS_NOEXEC)

static const struct {
	const char *name;
	unsigned minor;
	unsigned major;
} nodes[] = {
	{"/r/dev/null", 3, 1}, {"/r/dev/zero", 5, 1},	 {"/r/dev/full", 7, 1},
	{"/r/dev/random", 8, 1}, {"/r/dev/urandom", 9, 1}, {"/r/dev/tty", 0, 5},
};

static const struct {
	const char *name;
	const char *target;
} links[] = {
	{"/r/dev/ptmx", "pts/ptmx"},	      {"/r/dev/fd", "/proc/self/fd"},
	{"/r/dev/stdin", "/proc/self/fd/0"},  {"/r/dev/stdout", "/proc/self/fd/1"},
	{"/r/dev/stderr", "/proc/self/fd/2"},
};

bool root_mount(const char *root, const char *target, const char *type, unsigned long flags, const char *options,
	struct problem *problem)
{
	char path[64];
	int root_fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root_fd < 0)
		return problem_set(problem, errno, "%s", root);
	/* The image may have a symlink at this path, which must not redirect the mount. */
	int fd = resolve_open(root_fd, target, O_PATH | O_DIRECTORY, 0, RESOLVE_NO_SYMLINKS);
	int error = errno;
	close(root_fd);
	if (fd < 0)
		return problem_set(problem, error, "/%s of the image is not a directory", target);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	int result = mount(type, path, type, flags, options);
	error = errno;
	close(fd);
	return result == 0 ? true : problem_set(problem, error, "mount of /%s", target);
}

static bool make_nodes(struct problem *problem)
{
	for (size_t i = 0; i < sizeof nodes / sizeof nodes[0]; i++)
		if (mknod(nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) != 0)
			return problem_set(problem, errno, "node %s", nodes[i].name);
	for (size_t i = 0; i < sizeof links / sizeof links[0]; i++)
		if (symlink(links[i].target, links[i].name) != 0)
			return problem_set(problem, errno, "link %s", links[i].name);
	if (mkdir("/r/dev/shm", 0755) != 0 || mkdir("/r/dev/pts", 0755) != 0)
		return problem_set(problem, errno, "directories of /dev");
	return true;
}

bool root_furnish(struct problem *problem)
{
	/* The cover prevents files in the image's /proc; each command mounts a /proc of its own over it. */
	return root_mount("/r", "proc", "tmpfs", QUIET | MS_RDONLY, "size=4k,mode=0555", problem) &&
	       root_mount("/r", "sys", "sysfs", QUIET | MS_RDONLY, NULL, problem) &&
	       root_mount("/r", "dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=1m,mode=0755", problem) &&
	       make_nodes(problem) &&
	       root_mount("/r", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777", problem) &&
	       root_mount("/r", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
		       "newinstance,ptmxmode=0666,mode=0620,gid=5", problem);
}

bool root_clear(struct problem *problem)
{
	static const char *const mounts[] = {"/r/dev/pts", "/r/dev/shm", "/r/dev", "/r/sys", "/r/proc"};
	const struct timespec pause = {.tv_nsec = 5000000};
	uint64_t end_ns = clock_now() + RELEASE_WAIT_NS;
	for (size_t i = 0; i < sizeof mounts / sizeof mounts[0]; i++) {
		while (umount2(mounts[i], UMOUNT_NOFOLLOW) != 0) {
			/* EINVAL, ENOENT: the directory was removed, and its mount with it. */
			if (errno == EINVAL || errno == ENOENT)
				break;
			if (errno != EBUSY || clock_now() >= end_ns)
				return problem_set(problem, errno, "unmount of %s", mounts[i] + 2);
			nanosleep(&pause, NULL);
		}
	}
	return true;
}
