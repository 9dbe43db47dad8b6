#include "put.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
#include "platform.h"
#include "problem.h"
#include "protocol.h"
#include "quiesce.h"
#include "resolve.h"
#include "session.h"
#include "steps.h"

#define PUT_FIXED_BYTES (4 + 4 + 4 + 4 + 8)

struct put {
	int fd;
	uint64_t remaining;
	char path[PATH_MAX];
};

static struct put files[TASKS_COUNT_MAX];
static const struct session_kind put_kind;

static bool copy_path(char path[PATH_MAX], const struct frame *frame, struct problem *problem)
{
	size_t length = frame->length - PUT_FIXED_BYTES;
	const uint8_t *bytes = frame->payload + PUT_FIXED_BYTES;
	if (length >= PATH_MAX)
		return problem_set(problem, ENAMETOOLONG, "path of %zu bytes", length);
	if (length < 2 || bytes[0] != '/' || memchr(bytes, 0, length) != NULL)
		return problem_set(problem, EINVAL, "path that is not absolute, or has a NUL");
	memcpy(path, bytes, length);
	path[length] = '\0';
	return true;
}

struct owner {
	mode_t mode;
	uid_t uid;
	gid_t gid;
};

/* Creates or truncates the file in `root`. Returns its descriptor, or -1 with a problem. */
static int open_target(int root, const char *path, const struct owner *owner, struct problem *problem)
{
	/* Mounts such as /proc, /sys and /dev are not part of the image. */
	const uint64_t resolve = RESOLVE_NO_XDEV;
	if (!resolve_make_directories(root, path, false, resolve, problem))
		return -1;
	/* O_NONBLOCK: opening a FIFO without a reader fails instead of blocking. */
	int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY | O_NONBLOCK;
	int fd = resolve_open(root, path, flags, 0600, resolve);
	if (fd < 0) {
		problem_set(problem, errno, "file %s", path);
		return -1;
	}
	struct stat status;
	if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
		problem_set(problem, EINVAL, "%s is not a regular file", path);
	} else if (fchown(fd, owner->uid, owner->gid) != 0 && geteuid() == 0) {
		problem_set(problem, errno, "owner of %s", path);
	} else if (fchmod(fd, owner->mode) != 0) { /* after the owner, because chown clears set-id bits */
		problem_set(problem, errno, "mode of %s", path);
	} else {
		return fd;
	}
	close(fd);
	return -1;
}

static void fail(struct session *session, const struct problem *problem)
{
	steps_fail(problem);
	session_fail(session, problem);
}

static void finish_if_whole(struct session *session)
{
	if (files[session->slot].remaining > 0)
		return;
	session_done(session, 0);
}

bool put_open(const struct frame *frame)
{
	if (get_u32(frame->payload + 12) != 0)
		return false;
	if (!steps_check(frame->session, true))
		return true;
	struct session *session = session_open(frame->session, &put_kind);
	if (session == NULL)
		return true;
	struct put *put = &files[session->slot];
	struct problem problem;
	char root_path[PATH_MAX];
	put->fd = -1;
	put->remaining = get_u64(frame->payload + 16);
	struct owner owner = {
		.mode = get_u32(frame->payload) & 07777,
		.uid = get_u32(frame->payload + 4),
		.gid = get_u32(frame->payload + 8),
	};
	if (quiesce_alive())
		problem_set(&problem, EBUSY, "the scratch is quiesced");
	if (quiesce_alive() || !copy_path(put->path, frame, &problem)) {
		fail(session, &problem);
		return true;
	}
	snprintf(root_path, sizeof root_path, "%s/r", platform_prefix());
	int root = open(root_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	put->fd = open_target(root, put->path, &owner, &problem);
	close(root);
	if (put->fd < 0)
		fail(session, &problem);
	else
		finish_if_whole(session);
	return true;
}

static bool put_take(struct session *session, const struct frame *frame)
{
	struct put *put = &files[session->slot];
	if (frame->type != HOST_PUT_DATA || frame->length > put->remaining)
		return false;
	for (size_t at = 0; at < frame->length;) {
		ssize_t count = write(put->fd, frame->payload + at, frame->length - at);
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0) {
			struct problem problem;
			problem_set(&problem, errno, "write to %s", put->path);
			fail(session, &problem);
			return true;
		}
		at += (size_t)count;
	}
	put->remaining -= frame->length;
	finish_if_whole(session);
	return true;
}

static void put_close(struct session *session)
{
	struct put *put = &files[session->slot];
	if (put->fd >= 0)
		close(put->fd);
	put->fd = -1;
}

static const struct session_kind put_kind = {
	.class = SESSION_TASK,
	.take = put_take,
	.close = put_close,
};
