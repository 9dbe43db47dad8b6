/*
 * Restricts the system calls. Namespaces, mounts and capabilities limit what a call can reach; this filter limits how much
 * of the kernel can be called at all.
 *
 * A refused call returns ENOSYS. C libraries and the runtimes of Go and Rust then assume an older kernel and use the calls
 * that it has. So a list of allowed calls also works for libraries that are newer than the list.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/falloc.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fail.h"
#include "filter.h"

/* Missing from the headers of the build. */
enum { CALL_quotactl_fd = 443, CALL_fchmodat2 = 452, CALL_statmount = 457, CALL_listmount = 458 };
/* First call number that is unknown (Linux 6.13). All calls of x32, an alternative ABI, are above it. */
enum { CALL_UNKNOWN_FIRST = 463 };

#define NAMESPACES \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
#define REFUSED (SECCOMP_RET_ERRNO | ENOSYS)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Calls of programs that convert files to files: skopeo, umoci, mkfs, du, a shell. */
static const unsigned short tool_calls[] = {
	/* files */
	SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_readv, SYS_writev, SYS_preadv, SYS_pwritev, SYS_preadv2,
	SYS_pwritev2, SYS_lseek, SYS_open, SYS_openat, SYS_openat2, SYS_creat, SYS_close, SYS_close_range, SYS_dup,
	SYS_dup2, SYS_dup3, SYS_fcntl, SYS_flock, SYS_fsync, SYS_fdatasync, SYS_sync, SYS_syncfs, SYS_sync_file_range,
	SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_readahead, SYS_sendfile, SYS_splice, SYS_tee,
	SYS_copy_file_range, SYS_ioctl, SYS_stat, SYS_fstat, SYS_lstat, SYS_newfstatat, SYS_statx, SYS_statfs,
	SYS_fstatfs, SYS_access, SYS_faccessat, SYS_faccessat2, SYS_getdents, SYS_getdents64, SYS_getcwd, SYS_chdir,
	SYS_fchdir, SYS_umask,
	/* names, owners, modes, times, attributes */
	SYS_rename, SYS_renameat, SYS_renameat2, SYS_mkdir, SYS_mkdirat, SYS_rmdir, SYS_link, SYS_linkat, SYS_unlink,
	SYS_unlinkat, SYS_symlink, SYS_symlinkat, SYS_readlink, SYS_readlinkat, SYS_mknod, SYS_mknodat, SYS_chmod,
	SYS_fchmod, SYS_fchmodat, CALL_fchmodat2, SYS_chown, SYS_fchown, SYS_lchown, SYS_fchownat, SYS_utime, SYS_utimes,
	SYS_futimesat, SYS_utimensat, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_getxattr, SYS_lgetxattr,
	SYS_fgetxattr, SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_removexattr, SYS_lremovexattr,
	SYS_fremovexattr,
	/* memory */
	SYS_brk, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_mremap, SYS_msync, SYS_mincore, SYS_madvise, SYS_mlock,
	SYS_munlock, SYS_memfd_create, SYS_membarrier,
	/* signals, time */
	SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigpending, SYS_rt_sigtimedwait,
	SYS_rt_sigsuspend, SYS_sigaltstack, SYS_pause, SYS_kill, SYS_tkill, SYS_tgkill, SYS_restart_syscall,
	SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_time, SYS_times,
	SYS_alarm, SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime,
	SYS_timer_getoverrun, SYS_timer_delete,
	/* waiting */
	SYS_poll, SYS_ppoll, SYS_select, SYS_pselect6, SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl,
	SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd, SYS_eventfd2, SYS_timerfd_create,
	SYS_timerfd_settime, SYS_timerfd_gettime, SYS_pipe, SYS_pipe2,
	/* processes and threads; the arguments of clone are checked below */
	SYS_fork, SYS_vfork, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_pidfd_open,
	SYS_pidfd_send_signal, SYS_futex, SYS_set_robust_list, SYS_get_robust_list, SYS_set_tid_address, SYS_rseq,
	SYS_arch_prctl, SYS_prctl, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_setaffinity, SYS_sched_getparam,
	SYS_sched_getscheduler, SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_getcpu, SYS_getpriority,
	SYS_setpriority, SYS_getrlimit, SYS_setrlimit, SYS_prlimit64, SYS_getrusage, SYS_sysinfo, SYS_uname,
	SYS_getrandom,
	/* identity */
	SYS_getpid, SYS_gettid, SYS_getppid, SYS_getpgrp, SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid, SYS_getuid,
	SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_capget,
	/* sockets; their families are checked below */
	SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_getsockname, SYS_getpeername,
	SYS_getsockopt, SYS_setsockopt, SYS_shutdown, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg,
	SYS_recvmmsg,
};

/*
 * Calls of the process that connects to the outside. It changes no file, and gets its only local socket, on which it
 * listens, from the daemon. Its sockets' families are checked below.
 */
static const unsigned short gate_calls[] = {
	/* files, which are read-only */
	SYS_read, SYS_write, SYS_pread64, SYS_readv, SYS_writev, SYS_lseek, SYS_open, SYS_openat, SYS_close,
	SYS_close_range, SYS_fcntl, SYS_dup, SYS_dup2, SYS_dup3, SYS_stat, SYS_fstat, SYS_lstat, SYS_newfstatat,
	SYS_statx, SYS_access, SYS_faccessat, SYS_faccessat2, SYS_getdents64, SYS_getcwd, SYS_readlink, SYS_readlinkat,
	SYS_fadvise64,
	/* memory */
	SYS_brk, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_mremap, SYS_mincore, SYS_madvise, SYS_membarrier,
	/* signals, time, waiting */
	SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_tgkill, SYS_restart_syscall,
	SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_poll, SYS_ppoll,
	SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2,
	SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime, SYS_pipe2,
	/* threads, and the execution of the program; the arguments of clone are checked below */
	SYS_execve, SYS_exit, SYS_exit_group, SYS_futex, SYS_set_robust_list, SYS_set_tid_address, SYS_rseq,
	SYS_arch_prctl, SYS_prctl, SYS_sched_yield, SYS_sched_getaffinity, SYS_sched_getparam, SYS_sched_getscheduler,
	SYS_getcpu, SYS_getpriority, SYS_getrlimit, SYS_prlimit64, SYS_getrusage, SYS_sysinfo, SYS_uname, SYS_getrandom,
	/* identity */
	SYS_getpid, SYS_gettid, SYS_getppid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid,
	/* sockets */
	SYS_connect, SYS_accept, SYS_accept4, SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt,
	SYS_shutdown, SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
};

/*
 * Calls that no monitor makes. A list of allowed calls would have to follow every release of two large programs. They
 * install such lists themselves, in addition to this one.
 */
static const unsigned short refused_to_monitors[] = {
	/* mounts, roots and namespaces */
	SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_move_mount, SYS_open_tree, SYS_fsopen, SYS_fsconfig,
	SYS_fsmount, SYS_fspick, SYS_mount_setattr, CALL_statmount, CALL_listmount, SYS_unshare, SYS_setns,
	/* clone3 passes its flags in memory, which filters cannot read; libraries fall back to clone */
	SYS_clone3,
	/* files by handle, which bypasses directories; quotas, swap */
	SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_quotactl, CALL_quotactl_fd, SYS_swapon, SYS_swapoff,
	/* other processes */
	SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_pidfd_getfd, SYS_kcmp,
	/* page faults that wait for a program widen races in the kernel */
	SYS_userfaultfd,
	/* keys; programs, code and events in the kernel */
	SYS_add_key, SYS_request_key, SYS_keyctl, SYS_bpf, SYS_perf_event_open, SYS_fanotify_init, SYS_init_module,
	SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_syslog, SYS_lookup_dcookie,
	/* settings of the host */
	SYS_reboot, SYS_acct, SYS_vhangup, SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_settimeofday, SYS_clock_settime,
	SYS_clock_adjtime, SYS_adjtimex, SYS_sethostname, SYS_setdomainname,
	/* queues of System V and POSIX: the IPC namespace may be the service's */
	SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_msgget,
	SYS_msgsnd, SYS_msgrcv, SYS_msgctl, SYS_mq_open, SYS_mq_unlink, SYS_mq_timedsend, SYS_mq_timedreceive,
	SYS_mq_notify, SYS_mq_getsetattr,
	/* calls that exist only for old programs */
	SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl, SYS_nfsservctl, SYS_remap_file_pages,
};

static const unsigned short io_uring[] = { SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register };

/* Calls of the process that sets attributes, whose capability would allow much more; see attributes.c. */
static const unsigned short server_calls[] = {
	SYS_recvmsg, SYS_seccomp, SYS_pidfd_open, SYS_poll, SYS_ioctl, SYS_process_vm_readv, SYS_openat2, SYS_setxattr,
	SYS_removexattr, SYS_close, SYS_wait4, SYS_writev, SYS_exit_group,
};

/* Two instructions for each call, and room for the others. */
static struct sock_filter program[2 * COUNT(tool_calls) + 64];
static unsigned short length;

static void emit(unsigned int code, unsigned int value, unsigned char if_true, unsigned char if_false)
{
	if (length == COUNT(program)) {
		errno = E2BIG;
		fail("filter", "");
	}
	program[length++] = (struct sock_filter)BPF_JUMP((unsigned short)code, value, if_true, if_false);
}

static void load(size_t offset)
{
	emit(BPF_LD | BPF_W | BPF_ABS, (unsigned int)offset, 0, 0);
}

/* Loads the lower half: the kernel uses only 32 bits of every argument that is checked. */
static void load_argument(size_t index)
{
	load(offsetof(struct seccomp_data, args) + index * sizeof(uint64_t));
}

static void answer(unsigned int verdict)
{
	emit(BPF_RET | BPF_K, verdict, 0, 0);
}

static void answer_if(unsigned int comparison, unsigned int value, unsigned int verdict)
{
	emit(BPF_JMP | BPF_K | comparison, value, 0, 1);
	answer(verdict);
}

static void answer_each(const unsigned short *calls, size_t count, unsigned int verdict)
{
	for (size_t i = 0; i < count; i++)
		answer_if(BPF_JEQ, calls[i], verdict);
}

/* Starts the instructions for one call, which are `instructions` long and end with an answer. */
static void for_call(unsigned int call, unsigned char instructions)
{
	emit(BPF_JMP | BPF_K | BPF_JEQ, call, 0, instructions);
}

static void check_ioctl(void)
{
	/* These inject input into a terminal. */
	for_call(SYS_ioctl, 6);
	load_argument(1);
	answer_if(BPF_JEQ, TIOCSTI, SECCOMP_RET_ERRNO | EPERM);
	answer_if(BPF_JEQ, TIOCLINUX, SECCOMP_RET_ERRNO | EPERM);
	answer(SECCOMP_RET_ALLOW);
}

/* Instructions for one call that loads an argument, compares it `comparisons` times, and answers. */
#define INSTRUCTIONS(comparisons) ((unsigned char)(2 + 2 * (comparisons)))

/*
 * A gate opens sockets of the internet only: in the host's network, abstract sockets of other programs are in reach. It
 * starts threads, but no processes. It never listens: the socket that it was given listens already, and its runtime's call
 * for that descriptor succeeds without being made, because another socket can take the number.
 */
static void check_gate_arguments(void)
{
	for_call(SYS_clone, INSTRUCTIONS(1));
	load_argument(0);
	answer_if(BPF_JSET, CLONE_THREAD, SECCOMP_RET_ALLOW);
	answer(REFUSED);
	for_call(SYS_socket, INSTRUCTIONS(2));
	load_argument(0);
	answer_if(BPF_JEQ, AF_INET, SECCOMP_RET_ALLOW);
	answer_if(BPF_JEQ, AF_INET6, SECCOMP_RET_ALLOW);
	answer(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
	for_call(SYS_listen, INSTRUCTIONS(1));
	load_argument(0);
	answer_if(BPF_JEQ, STDERR_FILENO + 1, SECCOMP_RET_ERRNO | 0);
	answer(SECCOMP_RET_ERRNO | EACCES);
	check_ioctl();
}

static void check_arguments(void)
{
	for_call(SYS_clone, 4);
	load_argument(0);
	answer_if(BPF_JSET, NAMESPACES, REFUSED);
	answer(SECCOMP_RET_ALLOW);
	/* Only families with a namespace: AF_VSOCK reaches the host, and AF_ALG its drivers, from every network namespace. */
	for_call(SYS_socket, 8);
	load_argument(0);
	answer_if(BPF_JEQ, AF_UNIX, SECCOMP_RET_ALLOW);
	answer_if(BPF_JEQ, AF_INET, SECCOMP_RET_ALLOW);
	answer_if(BPF_JEQ, AF_INET6, SECCOMP_RET_ALLOW);
	answer(SECCOMP_RET_ERRNO | EAFNOSUPPORT);
	check_ioctl();
}

/*
 * Allows releasing space of a file, but not allocating it: a guest that zeroes a gigabyte of its disk would fill the
 * host's disk within milliseconds, before anything could react. Monitors write zeros instead.
 */
static void check_allocation(void)
{
	for_call(SYS_fallocate, 4);
	load_argument(1);
	answer_if(BPF_JEQ, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, SECCOMP_RET_ALLOW);
	answer(REFUSED);
}

/* Refuses other architectures and unknown calls. Afterwards the call's number is loaded for comparison. */
static void refuse_other_abis(void)
{
	load(offsetof(struct seccomp_data, arch));
	emit(BPF_JMP | BPF_K | BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0);
	answer(REFUSED);
	load(offsetof(struct seccomp_data, nr));
	answer_if(BPF_JGE, CALL_UNKNOWN_FIRST, REFUSED);
}

static void write_program(const struct options *options)
{
	refuse_other_abis();
	if (options->mode == MODE_GATE) {
		check_gate_arguments();
		answer_each(gate_calls, COUNT(gate_calls), SECCOMP_RET_ALLOW);
		answer(REFUSED);
		return;
	}
	check_arguments();
	if (options->mode == MODE_TOOL) {
		answer_if(BPF_JEQ, SYS_lsetxattr, options->attributes ? SECCOMP_RET_USER_NOTIF : SECCOMP_RET_ALLOW);
		answer_if(BPF_JEQ, SYS_lremovexattr, options->attributes ? SECCOMP_RET_USER_NOTIF : SECCOMP_RET_ALLOW);
		answer_each(tool_calls, COUNT(tool_calls), SECCOMP_RET_ALLOW);
		answer(REFUSED);
		return;
	}
	check_allocation();
	answer_each(refused_to_monitors, COUNT(refused_to_monitors), REFUSED);
	if (!options->io_uring)
		answer_each(io_uring, COUNT(io_uring), REFUSED);
	answer(SECCOMP_RET_ALLOW);
}

/* Returns -1 and errno when the kernel refuses the filter. */
static long install(unsigned int flags)
{
	struct sock_fprog filter = { .len = length, .filter = program };

	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
}

int install_filter(const struct options *options)
{
	unsigned int flags = options->attributes ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0;
	/* Signals then do not interrupt and repeat a call that is being served. Kernels before 5.19 lack the flag. */
	unsigned int uninterrupted = options->attributes ? SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV : 0;
	long result;

	write_program(options);
	result = install(flags | uninterrupted);
	if (result < 0 && errno == EINVAL)
		result = install(flags);
	if (result < 0)
		fail("seccomp", "");
	return options->attributes ? (int)result : -1;
}

void install_server_filter(void)
{
	refuse_other_abis();
	answer_each(server_calls, COUNT(server_calls), SECCOMP_RET_ALLOW);
	answer(REFUSED);
	if (install(0) != 0)
		fail("seccomp", "server");
}
