/*
 * Tries to escape from a jail, in every way that is open to a program under an attacker's control, and reports each result
 * as a line on standard error with its name and 0 or the kernel's error. Successful attempts do no harm.
 *
 *   escape DIRECTORY PID PORT ABSTRACT CANARY   DIRECTORY is writable; the others are outside of the jail: a process, the
 *                                               listeners on the host's loopback and at an abstract name, and a file
 *   escape attribute set|remove PATH NAME       one attribute, of the value "v"
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/falloc.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *directory;
static pid_t outsider;
static int port;
static const char *abstract;
static const char *canary;

static void tell(const char *name, long result)
{
	fprintf(stderr, "%s %d\n", name, result < 0 ? errno : 0);
}

static const char *in_directory(const char *name)
{
	static char path[4096];

	snprintf(path, sizeof path, "%s/%s", directory, name);
	return path;
}

static void try_mounts(void)
{
	const char *point = in_directory("point");

	mkdir(point, 0755);
	tell("mount proc", mount("proc", point, "proc", 0, NULL));
	tell("mount cgroup2", mount("cgroup2", point, "cgroup2", 0, NULL));
	tell("mount cgroup", mount("devices", point, "cgroup", 0, "devices"));
	tell("mount tmpfs", mount("tmpfs", point, "tmpfs", 0, NULL));
	tell("bind", mount("/", point, NULL, MS_BIND | MS_REC, NULL));
	tell("remount", mount(NULL, point, NULL, MS_REMOUNT | MS_BIND, NULL));
	tell("umount", umount2(point, MNT_DETACH));
	tell("fsopen", syscall(SYS_fsopen, "proc", 0));
	tell("fspick", syscall(SYS_fspick, AT_FDCWD, point, 0));
	tell("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
	tell("move_mount", syscall(SYS_move_mount, AT_FDCWD, point, AT_FDCWD, point, 0));
	tell("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, point, 0, NULL, 0));
	tell("pivot_root", syscall(SYS_pivot_root, "/nowhere", "/nowhere"));
}

static void try_files(void)
{
	struct stat status;
	char path[4096];
	int found = -1;

	/* A directory of the host that was left open would lead out. */
	for (int fd = 0; fd < 1024; fd++) {
		if (fstat(fd, &status) == 0 && S_ISDIR(status.st_mode))
			found = 0;
	}
	errno = ENOENT;
	tell("a directory that is open", found);
	tell("a file of the host", open(canary, O_RDONLY));
	snprintf(path, sizeof path, "/proc/%d/root%s", getppid(), canary);
	tell("the same by /proc", open(path, O_RDONLY));
	snprintf(path, sizeof path, "/../../..%s", canary);
	tell("the same by climbing", open(path, O_RDONLY));
	/* The classic: a directory stays open when the root becomes one below it. */
	int outside = open("/", O_RDONLY | O_DIRECTORY);
	tell("chroot", chroot(directory));
	for (int i = 0; i < 64; i++) {
		if (fchdir(outside) != 0 || chdir("..") != 0)
			break;
	}
	tell("the same by another root", open(canary + 1, O_RDONLY));
}

static void try_devices(void)
{
	const char *path = in_directory("null");
	char by_descriptor[64];
	int fd;

	unlink(path);
	tell("make a device", mknod(path, S_IFCHR | 0666, makedev(1, 3)));
	tell("open a device", open(path, O_RDWR));
	fd = open(path, O_PATH);
	snprintf(by_descriptor, sizeof by_descriptor, "/proc/self/fd/%d", fd);
	tell("open a device by its descriptor", open(by_descriptor, O_RDWR));
	path = in_directory("disk");
	unlink(path);
	tell("make a disk", mknod(path, S_IFBLK | 0600, makedev(7, 0)));
	tell("open a disk", open(path, O_RDONLY | O_NONBLOCK));
}

static void try_proc(void)
{
	static const char *const files[] = { "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
					     "/proc/sysrq-trigger", "/proc/self/oom_score_adj", "/proc/self/mem",
					     "/proc/1/mem", "/proc/self/attr/current", "/proc/self/uid_map" };

	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		char name[128];

		snprintf(name, sizeof name, "write %s", files[i]);
		tell(name, open(files[i], O_WRONLY));
	}
	tell("read /proc/kcore", open("/proc/kcore", O_RDONLY));
	tell("read /proc/kallsyms", open("/proc/kallsyms", O_RDONLY));
	tell("see /sys", access("/sys/kernel", F_OK));
}

static void try_namespaces(void)
{
	struct clone_args arguments = { .flags = CLONE_NEWUSER, .exit_signal = SIGCHLD };
	int own = open("/proc/self/ns/net", O_RDONLY);
	long child;

	tell("setns", syscall(SYS_setns, own, 0));
	child = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
	if (child == 0)
		_exit(0);
	tell("clone user", child);
	child = syscall(SYS_clone, CLONE_NEWNS | CLONE_NEWNET | SIGCHLD, 0, 0, 0, 0);
	if (child == 0)
		_exit(0);
	tell("clone mnt", child);
	child = syscall(SYS_clone3, &arguments, sizeof arguments);
	if (child == 0)
		_exit(0);
	tell("clone3", child);
	child = fork();
	if (child == 0)
		_exit(0);
	tell("fork", child);
	tell("unshare mnt", syscall(SYS_unshare, CLONE_NEWNS));
	tell("unshare user", syscall(SYS_unshare, CLONE_NEWUSER));
}

static void try_processes(void)
{
	char byte;
	struct iovec local = { .iov_base = &byte, .iov_len = 1 };
	struct iovec remote = { .iov_base = &byte, .iov_len = 1 };
	int own = (int)syscall(SYS_pidfd_open, getpid(), 0);

	tell("signal", kill(outsider, 0));
	tell("pidfd_open", syscall(SYS_pidfd_open, outsider, 0));
	tell("pidfd_getfd", syscall(SYS_pidfd_getfd, own, 2, 0));
	tell("ptrace", syscall(SYS_ptrace, 0x4206 /* PTRACE_SEIZE */, outsider, 0, 0));
	tell("process_vm_readv", syscall(SYS_process_vm_readv, getpid(), &local, 1, &remote, 1, 0));
	tell("process_vm_writev", syscall(SYS_process_vm_writev, getpid(), &local, 1, &remote, 1, 0));
	tell("kcmp", syscall(SYS_kcmp, getpid(), getpid(), 0, 0, 0));
}

static void try_kernel(void)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1 };
	struct perf_event_attr event = { .type = PERF_TYPE_SOFTWARE, .size = sizeof event };
	struct io_uring_params ring = { 0 };
	struct {
		struct file_handle fields;
		char room[128];
	} handle = { .fields = { .handle_bytes = 128 } };
	int mount_id;

	tell("keyctl", syscall(SYS_keyctl, 0, -3, 0, 0, 0));
	tell("add_key", syscall(SYS_add_key, "user", "coppice-escape", "v", 1, -2));
	tell("request_key", syscall(SYS_request_key, "user", "coppice-escape", NULL, 0));
	tell("bpf", syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map));
	tell("perf_event_open", syscall(SYS_perf_event_open, &event, 0, -1, -1, 0));
	tell("io_uring", syscall(SYS_io_uring_setup, 1, &ring));
	tell("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC));
	tell("fanotify_init", syscall(SYS_fanotify_init, 0, 0));
	tell("init_module", syscall(SYS_init_module, "", 0, ""));
	tell("finit_module", syscall(SYS_finit_module, -1, "", 0));
	tell("delete_module", syscall(SYS_delete_module, "no-such-module", O_NONBLOCK));
	tell("kexec_load", syscall(SYS_kexec_load, 0, 0, NULL, ~0UL));
	tell("kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, NULL, ~0UL));
	tell("name_to_handle_at", syscall(SYS_name_to_handle_at, AT_FDCWD, "/", &handle, &mount_id, 0));
	tell("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY));
	tell("quotactl", syscall(SYS_quotactl, 0x80000100, NULL, 0, NULL));
	tell("swapon", syscall(SYS_swapon, "/nowhere", 0));
	tell("swapoff", syscall(SYS_swapoff, "/nowhere"));
	tell("reboot", syscall(SYS_reboot, 0, 0, 0, NULL));
	tell("acct", syscall(SYS_acct, "/nowhere"));
	tell("settimeofday", syscall(SYS_settimeofday, NULL, NULL));
	tell("clock_settime", syscall(SYS_clock_settime, -1, NULL));
	tell("sethostname", syscall(SYS_sethostname, "x", -1));
	tell("syslog", syscall(SYS_syslog, 10, NULL, 0));
	tell("iopl", syscall(SYS_iopl, 0));
	tell("shmget", syscall(SYS_shmget, 0, 4096, 01600));
	tell("mq_open", syscall(SYS_mq_open, "coppice-escape", O_RDONLY, 0, NULL));
	tell("ioctl", ioctl(open("/dev/null", O_RDONLY), TIOCSTI, "x"));
}

/* Disk space without writes. */
static void try_allocation(void)
{
	const char *path = in_directory("room");
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	tell("allocate", fallocate(fd, 0, 0, 8192));
	tell("allocate beyond the end", fallocate(fd, FALLOC_FL_KEEP_SIZE, 8192, 8192));
	tell("allocate zeros", fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 8192));
	tell("give room back", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	unlink(path);
}

/* Other entries to the same kernel. */
static void try_doors(void)
{
	int status = 0;

	tell("x32", syscall(0x40000000 | SYS_getpid));
	pid_t child = fork();
	if (child <= 0) {
		long result = 20 /* getpid */;

		__asm__ volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
		status = result < 0 ? (int)-result : 0;
		if (child == 0)
			_exit(status);
		errno = status;
	} else {
		waitpid(child, &status, 0);
		/* A kernel without that entry kills the caller. */
		errno = WIFEXITED(status) ? WEXITSTATUS(status) : ENOSYS;
	}
	tell("i386", errno == 0 ? 0 : -1);
}

/* An inherited descriptor may be one on which a jail allows a program to listen: another socket gets its number. */
static void try_listening_as_another(void)
{
	enum { GIVEN = 3 };

	dup2(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), GIVEN);
	if (listen(GIVEN, 1) == 0)
		accept(GIVEN, NULL, NULL);
	tell("listen in place of another", errno == EAGAIN ? 0 : -1);
}

static void try_sockets(void)
{
	static const struct {
		const char *name;
		int family;
		int type;
	} kinds[] = { { "AF_VSOCK", AF_VSOCK, SOCK_STREAM },   { "AF_NETLINK", AF_NETLINK, SOCK_RAW },
		      { "AF_PACKET", AF_PACKET, SOCK_RAW },    { "AF_ALG", AF_ALG, SOCK_SEQPACKET },
		      { "AF_INET raw", AF_INET, SOCK_RAW },    { "AF_BLUETOOTH", AF_BLUETOOTH, SOCK_RAW },
		      { "AF_UNIX", AF_UNIX, SOCK_STREAM } };
	struct sockaddr_in host = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(abstract));

	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		tell(kinds[i].name, socket(kinds[i].family, kinds[i].type, 0));
	host.sin_port = htons((unsigned short)port);
	tell("listen", listen(socket(AF_INET, SOCK_STREAM, 0), 1));
	tell("listen by a name", bind(socket(AF_INET, SOCK_STREAM, 0), (void *)&(struct sockaddr_in){ .sin_family = AF_INET }, sizeof host));
	tell("the host's loopback", connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&host, sizeof host));
	memcpy(name.sun_path + 1, abstract, strlen(abstract));
	tell("an abstract name", connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&name, bytes));
	try_listening_as_another();
}

static int change_attribute(char **arguments)
{
	const char *path = arguments[1];
	const char *name = arguments[2];

	if (strcmp(arguments[0], "set") == 0)
		tell(name, lsetxattr(path, name, "v", 1, 0));
	else
		tell(name, lremovexattr(path, name));
	return 0;
}

/* Each in its own process, so that no attempt is weaker because of the changes of another. */
static void (*const attempts[])(void) = { try_sockets, try_processes, try_kernel, try_doors,
					  try_proc,    try_devices,   try_mounts, try_files,
					  try_namespaces, try_allocation };

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "attribute") == 0)
		return change_attribute(argv + 2);
	if (argc != 6)
		return 2;
	directory = argv[1];
	outsider = atoi(argv[2]);
	port = atoi(argv[3]);
	abstract = argv[4];
	canary = argv[5];
	for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
		pid_t child = fork();

		/* Where no process can be started, this process makes all attempts. */
		if (child <= 0)
			attempts[i]();
		if (child == 0)
			_exit(0);
		/* Not just any child: a traced process counts as one. */
		waitpid(child, NULL, 0);
	}
	return 0;
}
