#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#define OVERLAY "trusted.overlay."
/* How newer kernels store an overlay attribute of a file that lies in an overlay itself: with a doubled prefix. */
#define ESCAPED OVERLAY "overlay."
#define OPAQUE OVERLAY "opaque"
#define ORIGIN OVERLAY "origin"

/* Flags of a lower layer that overlayfs shows. Other flags protect a file from changes, and would prevent them here. */
#define FLAGS_KEPT (FS_SYNC_FL | FS_DIRSYNC_FL | FS_NODUMP_FL | FS_NOATIME_FL)

#define PROC_PATH_BYTES (32 + NAME_MAX + 1)
/* Largest size for one call of sendfile(2), so that a copy shows progress. */
#define PIECE_BYTES_MAX 0x1000000

/* An object by its descriptor or, if it cannot be opened, by a path that is not followed. */
struct object {
	int fd;
	char path[PROC_PATH_BYTES];
};

static const char *descriptors = "/proc/self/fd";
/* Set for copies between mounts. */
static bool (*show_progress)(struct problem *problem);

static char names[XATTR_LIST_MAX];
static uint8_t value[XATTR_SIZE_MAX];

void copy_between_mounts(bool (*progress)(struct problem *problem))
{
	descriptors = ".";
	show_progress = progress;
}

bool copy_is_opaque(int directory)
{
	char mark[2];
	return fgetxattr(directory, OPAQUE, mark, sizeof mark) == 1 && mark[0] == 'y';
}

bool copy_set_opaque(int directory, struct problem *problem)
{
	return fsetxattr(directory, OPAQUE, "y", 1, 0) == 0 || problem_set(problem, errno, "opaque mark");
}

bool copy_set_whiteouts(int directory, struct problem *problem)
{
	/* An empty origin means "copied up". overlayfs looks for whiteouts only in directories with this mark. */
	return fsetxattr(directory, ORIGIN, "", 0, 0) == 0 || problem_set(problem, errno, "mark of whiteouts");
}

static bool copy_xattr(const struct object *from, const struct object *to, const char *name, struct problem *problem)
{
	ssize_t size = from->fd >= 0 ? fgetxattr(from->fd, name, value, sizeof value)
				     : lgetxattr(from->path, name, value, sizeof value);
	if (size < 0)
		return problem_set(problem, errno, "attribute %s", name);
	int result = to->fd >= 0 ? fsetxattr(to->fd, name, value, (size_t)size, 0)
				 : lsetxattr(to->path, name, value, (size_t)size, 0);
	return result == 0 || (errno == ENOTSUP && show_progress != NULL) || problem_set(problem, errno, "attribute %s", name);
}

static bool copy_xattrs(const struct object *from, const struct object *to, struct problem *problem)
{
	ssize_t size = from->fd >= 0 ? flistxattr(from->fd, names, sizeof names)
				     : llistxattr(from->path, names, sizeof names);
	if (size < 0)
		return errno == ENOTSUP || errno == EPERM || problem_set(problem, errno, "attributes");
	for (const char *name = names; name < names + size; name += strlen(name) + 1) {
		bool internal = strncmp(name, OVERLAY, strlen(OVERLAY)) == 0;
		if (internal && strncmp(name, ESCAPED, strlen(ESCAPED)) != 0)
			continue;
		if (!copy_xattr(from, to, name, problem))
			return false;
	}
	return true;
}

static void copy_flags(int from, int to)
{
	int flags = 0;
	int own = 0;
	/* The raw system call, because musl and glibc declare different types for the request. Not every file system has flags. */
	if (syscall(SYS_ioctl, from, FS_IOC_GETFLAGS, &flags) != 0 || (flags & FLAGS_KEPT) == 0)
		return;
	if (syscall(SYS_ioctl, to, FS_IOC_GETFLAGS, &own) != 0)
		return;
	own |= flags & FLAGS_KEPT;
	syscall(SYS_ioctl, to, FS_IOC_SETFLAGS, &own);
}

bool copy_attributes(int from, int to, const struct stat *status, struct problem *problem)
{
	const struct object source = {.fd = from};
	const struct object target = {.fd = to};
	const struct timespec times[2] = {status->st_atim, status->st_mtim};
	/* This order, because a change of owner clears capabilities and set-id bits, and an ACL changes the group's mode bits. */
	if (fchown(to, status->st_uid, status->st_gid) != 0)
		return problem_set(problem, errno, "owner");
	if (!copy_xattrs(&source, &target, problem))
		return false;
	if (fchmod(to, status->st_mode & 07777) != 0)
		return problem_set(problem, errno, "mode");
	copy_flags(from, to);
	return futimens(to, times) == 0 || problem_set(problem, errno, "times");
}

/* The same for objects that cannot be opened: links, devices, FIFOs, sockets. */
static bool copy_attributes_at(int from, const char *name, int to, const char *new_name, const struct stat *status,
	struct problem *problem)
{
	struct object source = {.fd = -1};
	struct object target = {.fd = -1};
	const struct timespec times[2] = {status->st_atim, status->st_mtim};
	snprintf(source.path, sizeof source.path, "%s/%d/%s", descriptors, from, name);
	snprintf(target.path, sizeof target.path, "%s/%d/%s", descriptors, to, new_name);
	if (fchownat(to, new_name, status->st_uid, status->st_gid, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "owner");
	if (!copy_xattrs(&source, &target, problem))
		return false;
	if (!S_ISLNK(status->st_mode) && fchmodat(to, new_name, status->st_mode & 07777, 0) != 0)
		return problem_set(problem, errno, "mode");
	return utimensat(to, new_name, times, AT_SYMLINK_NOFOLLOW) == 0 || problem_set(problem, errno, "times");
}

/* Copies the bytes `[at, end)` to the same position. */
static bool copy_piece(int from, int to, off_t at, off_t end, struct problem *problem)
{
	if (lseek(from, at, SEEK_SET) < 0 || lseek(to, at, SEEK_SET) < 0)
		return problem_set(problem, errno, "position");
	while (at < end) {
		size_t most = end - at < PIECE_BYTES_MAX ? (size_t)(end - at) : PIECE_BYTES_MAX;
		/* copy_file_range(2) cannot copy from one disk to another. */
		ssize_t count = sendfile(to, from, NULL, most);
		if (count < 0 && errno == EINTR)
			continue;
		if (count <= 0)
			return problem_set(problem, count < 0 ? errno : EIO, "content");
		at += count;
		if (show_progress != NULL && !show_progress(problem))
			return false;
	}
	return true;
}

static bool copy_content(int from, int to, off_t size, struct problem *problem)
{
	for (off_t at = 0; at < size;) {
		off_t data = lseek(from, at, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			break;
		off_t hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
		if (hole < 0)
			return problem_set(problem, errno, "holes");
		if (!copy_piece(from, to, data, hole < size ? hole : size, problem))
			return false;
		at = hole;
	}
	return ftruncate(to, size) == 0 || problem_set(problem, errno, "size");
}

static bool copy_file(int from, const char *name, int to, const char *new_name, const struct stat *status,
	struct problem *problem)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	int source = openat(from, name, flags | O_NOATIME);
	/* Only root and the owner may leave the time of access alone. */
	if (source < 0 && errno == EPERM)
		source = openat(from, name, flags);
	if (source < 0)
		return problem_set(problem, errno, "open");
	int target = openat(to, new_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	bool done = target >= 0 || problem_set(problem, errno, "create");
	done = done && copy_content(source, target, status->st_size, problem) &&
	       copy_attributes(source, target, status, problem);
	if (target >= 0)
		close(target);
	close(source);
	return done;
}

static bool copy_link(int from, const char *name, int to, const char *new_name, struct problem *problem)
{
	char target[PATH_MAX];
	ssize_t size = readlinkat(from, name, target, sizeof target - 1);
	if (size < 0)
		return problem_set(problem, errno, "target of the link");
	target[size] = '\0';
	return symlinkat(target, to, new_name) == 0 || problem_set(problem, errno, "link");
}

bool copy_object(int from, const char *name, int to, const char *new_name, const struct stat *status,
	struct problem *problem)
{
	if (S_ISREG(status->st_mode))
		return copy_file(from, name, to, new_name, status, problem);
	if (S_ISLNK(status->st_mode)) {
		if (!copy_link(from, name, to, new_name, problem))
			return false;
	} else if (mknodat(to, new_name, (status->st_mode & S_IFMT) | 0600, status->st_rdev) != 0) {
		return problem_set(problem, errno, "special file");
	}
	return copy_attributes_at(from, name, to, new_name, status, problem);
}
