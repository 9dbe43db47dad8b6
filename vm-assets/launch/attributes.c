/*
 * Sets extended attributes on behalf of a program that lacks the privilege. All input from the program is treated as
 * hostile: sizes are bounded, paths are resolved below the program's own root and on its own mounts, including read-only
 * ones, and only two name spaces are served. For every other call the kernel continues with the program's own rights.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "attributes.h"
#include "fail.h"

/* linux/limits.h: lengths of a path and of an attribute's name, both with NUL, and of its value. */
enum { PATH_BYTES_MAX = 4096, NAME_BYTES_MAX = 256, VALUE_BYTES_MAX = 65536, PAGE_BYTES = 4096 };
enum { DESCRIPTORS_COUNT = 2 };

/* The structures of a newer kernel may be longer; the kernel reports their size and writes no more than that. */
enum { NOTICE_BYTES_MAX = 1024 };
union notice {
	struct seccomp_notif fields;
	unsigned char room[NOTICE_BYTES_MAX];
};
union verdict {
	struct seccomp_notif_resp fields;
	unsigned char room[NOTICE_BYTES_MAX];
};

struct server {
	int listener;
	/* the root directory that the program sees */
	int root;
	size_t notice_bytes;
};

void make_channel(int channel[2])
{
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel) != 0)
		fail("socketpair", "");
}

uint64_t server_capabilities(uint64_t of_program)
{
	return of_program | UINT64_C(1) << CAP_SYS_ADMIN;
}

union control {
	struct cmsghdr header;
	char room[CMSG_SPACE(DESCRIPTORS_COUNT * sizeof(int))];
};

static struct msghdr message_with(union control *control, struct iovec *byte)
{
	return (struct msghdr){
		.msg_iov = byte, .msg_iovlen = 1, .msg_control = control->room, .msg_controllen = sizeof control->room
	};
}

void send_listener(int channel, int listener)
{
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	const int descriptors[DESCRIPTORS_COUNT] = { listener, root };
	union control control = { .room = { 0 } };
	struct iovec byte = { .iov_base = (char[1]){ 0 }, .iov_len = 1 };
	struct msghdr message = message_with(&control, &byte);
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	if (root < 0)
		fail("open", "/");
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof descriptors);
	memcpy(CMSG_DATA(header), descriptors, sizeof descriptors);
	if (sendmsg(channel, &message, MSG_NOSIGNAL) != 1)
		fail("send listener", "");
	close(root);
	close(listener);
}

/* Returns false when the child ended before it sent the descriptors. */
static bool receive_listener(int channel, struct server *server)
{
	int descriptors[DESCRIPTORS_COUNT];
	union control control = { .room = { 0 } };
	struct iovec byte = { .iov_base = (char[1]){ 0 }, .iov_len = 1 };
	struct msghdr message = message_with(&control, &byte);
	struct seccomp_notif_sizes sizes;
	struct cmsghdr *header;

	if (recvmsg(channel, &message, MSG_CMSG_CLOEXEC) != 1)
		return false;
	header = CMSG_FIRSTHDR(&message);
	if (header == NULL || header->cmsg_len != CMSG_LEN(sizeof descriptors)) {
		errno = EPROTO;
		fail("receive listener", "");
	}
	memcpy(descriptors, CMSG_DATA(header), sizeof descriptors);
	server->listener = descriptors[0];
	server->root = descriptors[1];
	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) != 0)
		fail("seccomp", "sizes");
	if (sizes.seccomp_notif > NOTICE_BYTES_MAX || sizes.seccomp_notif_resp > NOTICE_BYTES_MAX) {
		errno = E2BIG;
		fail("seccomp", "sizes");
	}
	server->notice_bytes = sizes.seccomp_notif;
	return true;
}

/* Reads the program's memory page by page. Returns the number of bytes up to the first unreadable page. */
static size_t read_memory(pid_t pid, uint64_t address, void *to, size_t bytes)
{
	size_t done = 0;

	while (done < bytes) {
		size_t rest = PAGE_BYTES - (address + done) % PAGE_BYTES;
		size_t part = rest < bytes - done ? rest : bytes - done;
		struct iovec local = { .iov_base = (char *)to + done, .iov_len = part };
		struct iovec remote = { .iov_base = (void *)(uintptr_t)(address + done), .iov_len = part };

		if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != (ssize_t)part)
			break;
		done += part;
	}
	return done;
}

/* Returns false when there is no string shorter than `bytes_max`; the kernel's own call then reports the error. */
static bool read_string(pid_t pid, uint64_t address, char *to, size_t bytes_max)
{
	return memchr(to, '\0', read_memory(pid, address, to, bytes_max)) != NULL;
}

static bool takes_admin(const char *name)
{
	if (strncmp(name, "trusted.", strlen("trusted.")) == 0)
		return true;
	return strncmp(name, "security.", strlen("security.")) == 0 && strcmp(name, "security.capability") != 0;
}

/* Executes the call. Returns 0, or the errno of the call. */
static int change_attribute(const struct server *server, const struct seccomp_data *call, const char *path,
			    const char *name, const void *value)
{
	struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
				.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
	/* /proc path of the descriptor, because a file that was opened without following the last link has no other name */
	char own_name[64];
	int fd = (int)syscall(SYS_openat2, server->root, path, &how, sizeof how);
	int result;

	if (fd < 0)
		return errno;
	snprintf(own_name, sizeof own_name, "/proc/self/fd/%d", fd);
	if (call->nr == SYS_lsetxattr)
		result = setxattr(own_name, name, value, call->args[3], (int)call->args[4]);
	else
		result = removexattr(own_name, name);
	result = result == 0 ? 0 : errno;
	close(fd);
	return result;
}

/* Returns whether the call was served; `error` is its result. */
static bool serve(const struct server *server, const struct seccomp_notif *notice, int *error)
{
	static char path[PATH_BYTES_MAX];
	static char name[NAME_BYTES_MAX];
	static char value[VALUE_BYTES_MAX];
	const struct seccomp_data *call = &notice->data;
	const pid_t pid = (pid_t)notice->pid;

	if (!read_string(pid, call->args[1], name, sizeof name) || !takes_admin(name))
		return false;
	/* The working directory of the program is not known here, so relative paths are not served. */
	if (!read_string(pid, call->args[0], path, sizeof path) || path[0] != '/')
		return false;
	if (call->nr == SYS_lsetxattr) {
		size_t bytes = call->args[3];

		if (bytes > sizeof value || read_memory(pid, call->args[2], value, bytes) != bytes)
			return false;
	}
	/* If the process has ended, its pid may have been reused, and the memory that was read is another process'. */
	if (ioctl(server->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &notice->id) != 0)
		return false;
	*error = change_attribute(server, call, path, name, value);
	return true;
}

static void answer(const struct server *server)
{
	static union notice notice;
	static union verdict verdict;
	int error = 0;

	memset(&notice, 0, server->notice_bytes);
	/* ENOENT, EINTR: the process was killed during the call. */
	if (ioctl(server->listener, (int)SECCOMP_IOCTL_NOTIF_RECV, &notice) != 0)
		return;
	memset(&verdict, 0, sizeof verdict);
	verdict.fields.id = notice.fields.id;
	if (serve(server, &notice.fields, &error))
		verdict.fields.error = -error;
	else
		verdict.fields.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	ioctl(server->listener, (int)SECCOMP_IOCTL_NOTIF_SEND, &verdict);
}

void serve_attributes(int channel, pid_t child)
{
	struct server server;
	struct pollfd waited[2] = { { .fd = -1, .events = POLLIN }, { .fd = -1, .events = POLLIN } };

	if (!receive_listener(channel, &server))
		return;
	close(channel);
	waited[0].fd = server.listener;
	/* Readable when the child has ended. */
	waited[1].fd = (int)syscall(SYS_pidfd_open, child, 0);
	if (waited[1].fd < 0)
		fail("pidfd", "");
	while (waited[1].revents == 0) {
		if (poll(waited, 2, -1) < 0 && errno != EINTR)
			fail("poll", "");
		if ((waited[0].revents & POLLIN) != 0)
			answer(&server);
		/* No process with the filter is left. */
		else if (waited[0].revents != 0)
			waited[0].fd = -1;
	}
	close(server.listener);
	close(server.root);
}
