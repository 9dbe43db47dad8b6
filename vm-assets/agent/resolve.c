#include "resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int resolve_open(int root, const char *path, int flags, unsigned mode, uint64_t resolve)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.mode = mode,
		.resolve = resolve | RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
	};
	return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

/* Opens the directory `path`. If it is missing, makes its last component in `parent`. */
static int step(int root, int parent, const char *path, const char *name, uint64_t resolve)
{
	int fd = resolve_open(root, path, O_PATH | O_DIRECTORY, 0, resolve);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	/* EEXIST: there is a dangling symlink, which the second open reports. */
	if (mkdirat(parent, name, 0755) != 0 && errno != EEXIST)
		return -1;
	fd = resolve_open(root, path, O_PATH | O_DIRECTORY, 0, resolve);
	if (fd < 0)
		return -1;
	/* A new directory in a setgid directory inherits its group. */
	if (fchownat(fd, "", 0, 0, AT_EMPTY_PATH) != 0 && errno != EPERM) {
		close(fd);
		return -1;
	}
	return fd;
}

bool resolve_make_directories(int root, const char *path, bool whole, uint64_t resolve, struct problem *problem)
{
	char prefix[PATH_MAX];
	size_t length = strlen(path);
	if (length >= sizeof prefix)
		return problem_set(problem, ENAMETOOLONG, "path of %zu bytes", length);
	memcpy(prefix, path, length + 1);
	int parent = resolve_open(root, "/", O_PATH | O_DIRECTORY, 0, resolve);
	if (parent < 0)
		return problem_set(problem, errno, "/");
	/* Each prefix is resolved from the root, because a symlink in it may lead to another directory. */
	for (size_t at = 0; at < length;) {
		size_t start = at + strspn(path + at, "/");
		size_t end = start + strcspn(path + start, "/");
		at = end;
		if (start == end || (path[end] == '\0' && !whole))
			break;
		prefix[end] = '\0';
		int next = step(root, parent, prefix, prefix + start, resolve);
		int error = errno;
		close(parent);
		parent = next;
		if (next < 0)
			return problem_set(problem, error, "directory %s", prefix);
		prefix[end] = path[end];
	}
	close(parent);
	return true;
}
