/*
 * Sets attributes for a program that may not. What comes from there is taken for hostile: sizes are bounded, a name is
 * looked up below the program's own root and on its own mounts, those that are read-only included, and only the two
 * name spaces are served. For everything else the kernel goes on as if nobody had looked, with the program's own rights.
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

/* linux/limits.h: of a path, of an attribute's name, both with their NUL, and of its value. */
enum { PATH_BYTES_MAX = 4096, NAME_BYTES_MAX = 256, VALUE_BYTES_MAX = 65536, PAGE_BYTES = 4096 };
enum { HANDED_OVER = 2 };

/* A newer kernel's structures are longer; it says so, and writes no more than it says. */
enum { NOTICE_BYTES_MAX = 1024 };
union notice {
	struct seccomp_notif fields;
	unsigned char room[NOTICE_BYTES_MAX];
};
union verdict {
	struct seccomp_notif_resp fields;
	unsigned char room[NOTICE_BYTES_MAX];
};

struct served {
	int listener;
	/* the program's root, as it sees it */
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
	char room[CMSG_SPACE(HANDED_OVER * sizeof(int))];
};

static struct msghdr message_with(union control *control, struct iovec *byte)
{
	return (struct msghdr){
		.msg_iov = byte, .msg_iovlen = 1, .msg_control = control->room, .msg_controllen = sizeof control->room
	};
}

void hand_over(int channel, int listener)
{
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	const int descriptors[HANDED_OVER] = { listener, root };
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
		fail("hand over", "");
	close(root);
	close(listener);
}

/* False when the child ended before it had something to hand over. */
static bool take_over(int channel, struct served *served)
{
	int descriptors[HANDED_OVER];
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
		fail("take over", "");
	}
	memcpy(descriptors, CMSG_DATA(header), sizeof descriptors);
	served->listener = descriptors[0];
	served->root = descriptors[1];
	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) != 0)
		fail("seccomp", "sizes");
	if (sizes.seccomp_notif > NOTICE_BYTES_MAX || sizes.seccomp_notif_resp > NOTICE_BYTES_MAX) {
		errno = E2BIG;
		fail("seccomp", "sizes");
	}
	served->notice_bytes = sizes.seccomp_notif;
	return true;
}

/* How much of the program's memory from `address` on could be read; a page that is not there ends it. */
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

/* False when there is no string of less than `bytes_max` bytes, for which the kernel has an error of its own. */
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

/* Errors are those of the call that it stands for; 0 is success. */
static int change_attribute(const struct served *served, const struct seccomp_data *call, const char *path,
			    const char *name, const void *value)
{
	struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
				.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS };
	/* The only name that a file has which was opened without following a last link. */
	char own_name[64];
	int fd = (int)syscall(SYS_openat2, served->root, path, &how, sizeof how);
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

/* Whether the call was served; `error` is then its outcome. */
static bool serve(const struct served *served, const struct seccomp_notif *notice, int *error)
{
	static char path[PATH_BYTES_MAX];
	static char name[NAME_BYTES_MAX];
	static char value[VALUE_BYTES_MAX];
	const struct seccomp_data *call = &notice->data;
	const pid_t pid = (pid_t)notice->pid;

	if (!read_string(pid, call->args[1], name, sizeof name) || !takes_admin(name))
		return false;
	/* From where a relative name starts is not known here. */
	if (!read_string(pid, call->args[0], path, sizeof path) || path[0] != '/')
		return false;
	if (call->nr == SYS_lsetxattr) {
		size_t bytes = call->args[3];

		if (bytes > sizeof value || read_memory(pid, call->args[2], value, bytes) != bytes)
			return false;
	}
	/* The process may have ended, and its number be another's, whose memory that was. */
	if (ioctl(served->listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &notice->id) != 0)
		return false;
	*error = change_attribute(served, call, path, name, value);
	return true;
}

static void answer(const struct served *served)
{
	static union notice notice;
	static union verdict verdict;
	int error = 0;

	memset(&notice, 0, served->notice_bytes);
	/* ENOENT, EINTR: the process was ended in the call. */
	if (ioctl(served->listener, (int)SECCOMP_IOCTL_NOTIF_RECV, &notice) != 0)
		return;
	memset(&verdict, 0, sizeof verdict);
	verdict.fields.id = notice.fields.id;
	if (serve(served, &notice.fields, &error))
		verdict.fields.error = -error;
	else
		verdict.fields.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	ioctl(served->listener, (int)SECCOMP_IOCTL_NOTIF_SEND, &verdict);
}

void serve_attributes(int channel, pid_t child)
{
	struct served served;
	struct pollfd waited[2] = { { .fd = -1, .events = POLLIN }, { .fd = -1, .events = POLLIN } };

	if (!take_over(channel, &served))
		return;
	close(channel);
	waited[0].fd = served.listener;
	/* Readable once the child has ended. */
	waited[1].fd = (int)syscall(SYS_pidfd_open, child, 0);
	if (waited[1].fd < 0)
		fail("pidfd", "");
	while (waited[1].revents == 0) {
		if (poll(waited, 2, -1) < 0 && errno != EINTR)
			fail("poll", "");
		if ((waited[0].revents & POLLIN) != 0)
			answer(&served);
		/* Nobody is left who could call. */
		else if (waited[0].revents != 0)
			waited[0].fd = -1;
	}
	close(served.listener);
	close(served.root);
}
