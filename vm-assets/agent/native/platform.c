/*
 * The agent as an ordinary program, for tests. `agent-native FD DIRECTORY` speaks the protocol over the inherited socket FD;
 * with `listen:FD`, FD is a listening socket. DIRECTORY contains l/NN/upper, s/upper and r in place of the guest's mounts,
 * and may contain l/NN/disk in place of a layer's disk. There are no namespaces and no cgroups, so commands see the build
 * machine, and only a command's process group is killed.
 */
#include "../platform.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LISTEN "listen:"

static char prefix[PATH_MAX / 2];

void platform_start(int argc, char **argv, struct transport *transport)
{
	if (argc != 3 || snprintf(prefix, sizeof prefix, "%s", argv[2]) >= (int)sizeof prefix) {
		fprintf(stderr, "usage: agent-native FD DIRECTORY\n");
		_exit(2);
	}
	transport->listens = strncmp(argv[1], LISTEN, sizeof LISTEN - 1) == 0;
	int fd = atoi(transport->listens ? argv[1] + sizeof LISTEN - 1 : argv[1]);
	if (transport->listens)
		transport->listener = fd;
	else
		transport->fd = fd;
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
		perror("agent-native");
		_exit(2);
	}
	umask(0);
}

void platform_ready(void)
{
}

void platform_log(const char *text)
{
	fprintf(stderr, "agent: %s\n", text);
}

_Noreturn void platform_end(int status)
{
	_exit(status);
}

bool platform_set_clock(uint64_t realtime_ns, struct problem *problem)
{
	return realtime_ns == 0 ? problem_set(problem, EINVAL, "clock") : true;
}

bool platform_reseed(const uint8_t *entropy, size_t size, struct problem *problem)
{
	(void)entropy;
	(void)size;
	(void)problem;
	return true;
}

const char *platform_prefix(void)
{
	return prefix;
}

static bool exists(const char *path, struct problem *problem)
{
	return access(path, F_OK) == 0 ? true : problem_set(problem, errno, "%s", path);
}

bool platform_mount(unsigned layers, enum mounts mounts, struct problem *problem)
{
	char path[PATH_MAX];
	for (unsigned number = 0; number < layers; number++) {
		snprintf(path, sizeof path, "%s/l/%02u/upper", prefix, number);
		if (!exists(path, problem))
			return false;
	}
	snprintf(path, sizeof path, "%s/s/upper", prefix);
	return mounts == MOUNTS_LAYERS || exists(path, problem);
}

int platform_open_layer(unsigned layer)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/l/%02u/disk", prefix, layer);
	return open(path, O_RDONLY | O_CLOEXEC);
}

bool platform_flush(struct problem *problem)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/s", prefix);
	return exists(path, problem);
}

/* A file represents the quiesced state. While a file named `busy` exists, the change does not finish. */
static bool change(bool quiesce, struct problem *problem)
{
	char path[PATH_MAX];
	char busy[PATH_MAX];
	const struct timespec pause = {.tv_nsec = 5000000};
	snprintf(path, sizeof path, "%s/quiesced", prefix);
	snprintf(busy, sizeof busy, "%s/busy", prefix);
	while (access(busy, F_OK) == 0)
		nanosleep(&pause, NULL);
	int result = quiesce ? open(path, O_CREAT | O_EXCL | O_CLOEXEC, 0600) : unlink(path);
	if (quiesce && result >= 0)
		close(result);
	return result >= 0 ? true : problem_set(problem, errno, "%s", path);
}

bool platform_quiesce(struct problem *problem)
{
	return change(true, problem);
}

bool platform_thaw(struct problem *problem)
{
	return change(false, problem);
}

bool platform_freeze(uint64_t *trimmed_bytes, struct problem *problem)
{
	(void)problem;
	*trimmed_bytes = 0;
	return true;
}

bool platform_release_disks(unsigned layers, bool scratch, struct problem *problem)
{
	(void)layers;
	(void)scratch;
	(void)problem;
	return true;
}

pid_t platform_fork_reaper(unsigned slot, bool isolated, struct problem *problem)
{
	(void)slot;
	(void)isolated;
	pid_t pid = fork();
	if (pid < 0)
		problem_set(problem, errno, "fork");
	return pid;
}

bool platform_enter_root(const char *hostname, struct problem *problem)
{
	(void)hostname;
	(void)problem;
	return true;
}

bool platform_join(int pidfd, struct problem *problem)
{
	/* Without namespaces there is nothing to join, but a missing process must be reported. */
	return syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0 ? true : problem_set(problem, errno, "join");
}

pid_t platform_fork_visitor(struct problem *problem)
{
	return platform_fork_reaper(0, false, problem);
}

/* A directory in place of the mount namespace, so that no test reaches a file of this machine. */
bool platform_visit(int pidfd, struct problem *problem)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/r", prefix);
	if (!platform_join(pidfd, problem))
		return false;
	if (geteuid() != 0 && unshare(CLONE_NEWUSER) != 0)
		return problem_set(problem, errno, "namespace of users");
	return (chroot(path) == 0 && chdir("/") == 0) || problem_set(problem, errno, "%s", path);
}

int platform_open_terminal(struct problem *problem)
{
	int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		problem_set(problem, errno, "terminal");
	return fd;
}

bool platform_is_empty(unsigned slot)
{
	(void)slot;
	return true;
}

void platform_become_ordinary(void)
{
}

void platform_kill(unsigned slot, pid_t reaper, pid_t command)
{
	(void)slot;
	if (command > 0)
		kill(-command, SIGKILL);
	kill(reaper, SIGKILL);
}

void platform_leave(unsigned slot, pid_t reaper)
{
	(void)slot;
	kill(reaper, SIGKILL);
}

void platform_release(unsigned slot, struct usage *usage)
{
	(void)slot;
	*usage = (struct usage){0};
}
