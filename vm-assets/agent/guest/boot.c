#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../log.h"
#include "../platform.h"
#include "guest.h"

/* Above every ordinary process, so that no command can delay the agent. */
#define AGENT_PRIORITY 50

static void mount_or_die(const char *type, const char *target, unsigned long flags, const char *options)
{
	mkdir(target, 0755);
	if (mount(type, target, type, flags, options) != 0)
		log_fatal("mount %s on %s: %s", type, target, strerror(errno));
}

/*
 * Moves the root to a tmpfs: pivot_root(2) cannot leave the initramfs, and commands must not find the agent's files below
 * their root.
 */
static void leave_initramfs(void)
{
	mount_or_die("tmpfs", "/new", MS_NOSUID, "mode=0755,size=16m");
	if (chdir("/new") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
		log_fatal("root of the agent: %s", strerror(errno));
	mkdir("/l", 0755);
	mkdir("/s", 0755);
	mkdir("/r", 0755);
}

/* Opens descriptors 0 to 2, which depend on no console. */
static void open_stdio(void)
{
	int fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd < 2)
		fd = dup(fd);
	if (fd > 2)
		close(fd);
}

static void raise_loopback(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(fd, SIOCSIFFLAGS, &request) != 0)
		log_line("loopback interface: %s", strerror(errno));
	close(fd);
}

void platform_start(int argc, char **argv, struct transport *transport)
{
	/* The kernel's command line names the transport; the default is the port. */
	bool vsock = argc > 1 && strcmp(argv[1], "vsock") == 0;

	umask(0);
	modules_open();
	leave_initramfs();
	mount_or_die("devtmpfs", "/dev", MS_NOSUID, "mode=0755");
	open_stdio();
	mount_or_die("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mount_or_die("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	modules_load("early");
	if (vsock) {
		modules_load("vsock");
		transport->listener = vsock_listen();
		transport->listens = true;
		return;
	}
	transport->fd = port_open();
	transport->reconnects = true;
}

void platform_ready(void)
{
	struct sched_param priority = {.sched_priority = AGENT_PRIORITY};
	mount_or_die("cgroup2", CGROUP_ROOT, MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	modules_load("late");
	modules_forget();
	disks_open();
	cgroup_open();
	raise_loopback();
	if (!write_file("/proc/self/oom_score_adj", "-1000"))
		log_line("oom_score_adj: %s", strerror(errno));
	/* MCL_ONFAULT: the tables are large, and most of them are never touched. */
	if (mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0)
		log_line("mlockall: %s", strerror(errno));
	/* Children of the agent have the ordinary scheduler. The raw system call, because musl's function returns ENOSYS. */
	if (syscall(SYS_sched_setscheduler, 0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority) != 0)
		log_line("scheduler: %s", strerror(errno));
}

void platform_log(const char *text)
{
	int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return;
	dprintf(fd, "agent: %s\n", text);
	close(fd);
}

/* Powers off instead of panicking, so that the host can tell an agent that gave up from a broken kernel. */
_Noreturn void platform_end(int status)
{
	(void)status;
	reboot(RB_POWER_OFF);
	_exit(1);
}

const char *platform_prefix(void)
{
	return "";
}
