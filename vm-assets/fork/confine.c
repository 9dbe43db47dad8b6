/*
 * Confines this process. Its input comes from a virtual machine monitor that its guest may have taken over; a program that
 * is taken over in turn can only read that monitor's memory and write to the copy.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "confine.h"
#include "problem.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
/* As for the monitors: the kernel should end a copy before the daemon. */
#define OOM_SCORE_ADJUSTMENT "500"

static const unsigned short calls[] = {
	SYS_read, SYS_write, SYS_pread64, SYS_ftruncate, SYS_munmap, SYS_futex, SYS_exit_group,
};

static void die_early(void)
{
	static const char score[] = OOM_SCORE_ADJUSTMENT;
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, score, sizeof score - 1) != (ssize_t)(sizeof score - 1))
		fail("oom_score_adj");
	close(fd);
	/* The parent may have died before this call; then its end of the control socket is closed. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		fail("pdeathsig");
}

void drop_privileges(unsigned int first_unused_fd)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { { 0, 0, 0 }, { 0, 0, 0 } };
	struct rlimit no_core = { .rlim_cur = 0, .rlim_max = 0 };

	die_early();
	if (syscall(SYS_close_range, first_unused_fd, ~0U, 0) != 0)
		fail("close_range");
	if (setrlimit(RLIMIT_CORE, &no_core) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0)
		fail("no core dumps");
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		fail("no_new_privs");
	if (syscall(SYS_capset, &header, none) != 0)
		fail("capset");
}

void install_filter(void)
{
	struct sock_filter program[2 * COUNT(calls) + 5];
	unsigned short length = 0;
	struct sock_fprog filter = { .filter = program };

	program[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	program[length++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < COUNT(calls); i++) {
		program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
		program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	filter.len = length;
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
		fail("seccomp");
}
