/*
 * Operations on trees. Every step is relative to an open directory and follows no symlink, so nothing outside of the tree is
 * touched, whatever the guest swaps meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../copy.h"
#include "../levels.h"
#include "../protocol.h"
#include "operations.h"
#include "place.h"

/* Missing from some headers of the C library. */
#define KEEP_TARGET 1U /* RENAME_NOREPLACE */
#define TREE_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
/* Entries can appear while a tree is removed; it is not tried for ever. */
#define RETRIES_COUNT_MAX 16

/* Directories that a moved tree gets, one for each level. */
static int targets[LEVELS_DEPTH_MAX + 1];
static uint64_t moved_count;

static bool fail(struct problem *problem, int error)
{
	return problem_set(problem, error, "%.300s", levels_path);
}

/* Opens a directory, unless it is a mount. */
static int open_directory(int parent, const char *name)
{
	const struct open_how how = {
		.flags = TREE_FLAGS,
		.resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS,
	};
	return (int)syscall(SYS_openat2, parent, name, &how, sizeof how);
}

/* Begins the walk of the directory at the present path. */
static bool enter(unsigned depth, int fd, struct problem *problem)
{
	if (fd < 0)
		return fail(problem, errno);
	if (depth > LEVELS_DEPTH_MAX - 1) {
		close(fd);
		return problem_set(problem, ENAMETOOLONG, "directories nested over %d deep", LEVELS_DEPTH_MAX);
	}
	levels[depth] = (struct level){.fd = fd, .path_bytes = strlen(levels_path)};
	listing_begin(&listings[depth]);
	return true;
}

/* The next name at a level, whose path is then set; NULL at the end, or when the directory cannot be read. */
static const char *next(unsigned depth)
{
	const char *name = listing_next(&listings[depth], levels[depth].fd);
	levels_path[levels[depth].path_bytes] = '\0';
	if (name != NULL && !levels_set_path(&levels[depth], name)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	return name;
}

/* Name of the directory of a level in the one above. */
static const char *own_name(unsigned depth)
{
	return levels_path + levels[depth - 1].path_bytes + (levels[depth - 1].path_bytes > 0);
}

/* Begins at the entry `name` of a directory, which takes level 0 without a walk. */
static void begin(int parent, const char *name)
{
	levels[0] = (struct level){.fd = parent};
	levels_set_path(&levels[0], name);
}

/* Removes the directory of a level, which has been read to its end. Returns 1 when it was, 0 when it must be read again. */
static int leave(unsigned depth, unsigned *retries, struct problem *problem)
{
	if (unlinkat(levels[depth - 1].fd, own_name(depth), AT_REMOVEDIR) == 0 || errno == ENOENT) {
		close(levels[depth].fd);
		return 1;
	}
	if (errno != ENOTEMPTY || (*retries)++ == RETRIES_COUNT_MAX || lseek(levels[depth].fd, 0, SEEK_SET) != 0) {
		fail(problem, errno);
		return -1;
	}
	listing_begin(&listings[depth]);
	return 0;
}

static bool remove_tree(uint64_t *count, struct problem *problem)
{
	unsigned retries = 0;
	unsigned depth = 1;
	while (depth > 0) {
		const char *name = next(depth);
		if (name == NULL && errno != 0)
			return fail(problem, errno);
		if (!place_progress(count, problem))
			return false;
		if (name == NULL) {
			int left = leave(depth, &retries, problem);
			if (left < 0)
				return false;
			*count += (uint64_t)left;
			depth -= (unsigned)left;
			continue;
		}
		int error = unlinkat(levels[depth].fd, name, 0) == 0 ? 0 : errno;
		int fd = error == EISDIR ? open_directory(levels[depth].fd, name) : -1;
		if (fd >= 0) {
			if (!enter(++depth, fd, problem))
				return false;
			continue;
		}
		if (error == EISDIR)
			error = errno;
		/* Vanished, or exchanged since: then its directory is not empty, and read again. */
		if (error != 0 && error != ENOENT && error != ELOOP && error != ENOTDIR)
			return fail(problem, error);
		*count += error == 0;
	}
	return true;
}

bool tree_remove(struct request *request, uint64_t *count, struct problem *problem)
{
	char name[NAME_MAX + 1];
	struct stat status;
	int parent = place_open_parent(request, request->path, name, problem);
	if (parent < 0)
		return false;
	*count = 1;
	if (fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "%.300s", request->path);
	bool is_directory = S_ISDIR(status.st_mode);
	if (unlinkat(parent, name, is_directory ? AT_REMOVEDIR : 0) == 0)
		return true;
	if (!is_directory || errno != ENOTEMPTY || (request->flags & FILE_FLAG_RECURSIVE) == 0)
		return problem_set(problem, errno, "%.300s", request->path);
	*count = 0;
	begin(parent, name);
	return enter(1, open_directory(parent, name), problem) && remove_tree(count, problem);
}

/* Moves an entry of a directory, by copying it if need be. Returns 0 for a directory whose entries must be moved one by one. */
static int move_entry(int from, const char *name, int to, const char *new_name, struct stat *status, struct problem *problem)
{
	if (syscall(SYS_renameat2, from, name, to, new_name, KEEP_TARGET) == 0)
		return 1;
	if (errno == EXDEV && fstatat(from, name, status, AT_SYMLINK_NOFOLLOW) == 0) {
		if (S_ISDIR(status->st_mode))
			return 0;
		if (!copy_object(from, name, to, new_name, status, problem)) {
			unlinkat(to, new_name, 0);
			return -1;
		}
		if (unlinkat(from, name, 0) == 0)
			return 1;
	}
	fail(problem, errno);
	return -1;
}

/* Makes the directory `new_name` of `to` for the tree at the present path, and begins the walk of that. */
static bool enter_copy(unsigned depth, int from, const char *name, int to, const char *new_name, struct problem *problem)
{
	if (mkdirat(to, new_name, 0700) != 0)
		return fail(problem, errno);
	targets[depth] = open_directory(to, new_name);
	return targets[depth] < 0 ? fail(problem, errno) : enter(depth, open_directory(from, name), problem);
}

/* Ends the walk of a directory, which is empty now. */
static bool leave_copy(unsigned depth, struct problem *problem)
{
	struct stat status;
	if (fstat(levels[depth].fd, &status) != 0)
		return fail(problem, errno);
	bool done = copy_attributes(levels[depth].fd, targets[depth], &status, problem);
	close(levels[depth].fd);
	close(targets[depth]);
	return done && (unlinkat(levels[depth - 1].fd, own_name(depth), AT_REMOVEDIR) == 0 || fail(problem, errno));
}

static bool show_progress(struct problem *problem)
{
	return place_progress(&moved_count, problem);
}

static bool move_tree(struct problem *problem)
{
	struct stat status;
	unsigned depth = 1;
	while (depth > 0) {
		const char *name = next(depth);
		if (name == NULL && errno != 0)
			return fail(problem, errno);
		if (!show_progress(problem))
			return false;
		if (name == NULL) {
			if (!leave_copy(depth--, problem))
				return false;
			continue;
		}
		int moved = move_entry(levels[depth].fd, name, targets[depth], name, &status, problem);
		if (moved < 0)
			return false;
		if (moved == 0 && !enter_copy(depth + 1, levels[depth].fd, name, targets[depth], name, problem))
			return false;
		depth += moved == 0;
		moved_count++;
	}
	return true;
}

/*
 * Moves between file systems. So does an overlay: it renames no directory of a lower layer. What is in place gives way before,
 * if the request says so.
 */
static bool move_across(const struct request *request, int from, const char *name, int to, const char *new_name,
	struct problem *problem)
{
	struct stat old;
	struct stat status;
	begin(from, name);
	if (fstatat(from, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return fail(problem, errno);
	if (fstatat(to, new_name, &old, AT_SYMLINK_NOFOLLOW) == 0) {
		if ((request->flags & FILE_FLAG_REPLACE) == 0)
			return fail(problem, EEXIST);
		if (S_ISDIR(status.st_mode) != S_ISDIR(old.st_mode))
			return fail(problem, S_ISDIR(old.st_mode) ? EISDIR : ENOTDIR);
		if (unlinkat(to, new_name, S_ISDIR(old.st_mode) ? AT_REMOVEDIR : 0) != 0)
			return fail(problem, errno);
	}
	int moved = move_entry(from, name, to, new_name, &status, problem);
	return moved == 0 ? enter_copy(1, from, name, to, new_name, problem) && move_tree(problem) : moved > 0;
}

/* True when the directory `to` is in the tree of the entry, which cannot be moved into itself. */
static bool is_below(int from, const char *name, int to)
{
	struct stat top;
	struct stat root;
	struct stat at;
	bool found = false;
	if (fstatat(from, name, &top, AT_SYMLINK_NOFOLLOW) != 0 || stat("/", &root) != 0)
		return false;
	for (int fd = fcntl(to, F_DUPFD_CLOEXEC, 0); fd >= 0;) {
		bool done = fstat(fd, &at) != 0 || (at.st_dev == root.st_dev && at.st_ino == root.st_ino);
		found = at.st_dev == top.st_dev && at.st_ino == top.st_ino;
		int up = done || found ? -1 : openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		close(fd);
		fd = up;
	}
	return found;
}

bool tree_move(struct request *request, uint64_t *count, struct problem *problem)
{
	const char *path;
	char name[NAME_MAX + 1];
	char new_name[NAME_MAX + 1];
	const struct request bare = {.flags = 0};
	*count = 0;
	copy_between_mounts(show_progress);
	if (!request_take_path(request, &path, problem))
		return false;
	int from = place_open_parent(&bare, request->path, name, problem);
	int to = from < 0 ? -1 : place_open_parent(request, path, new_name, problem);
	if (to < 0)
		return false;
	unsigned flags = (request->flags & FILE_FLAG_REPLACE) != 0 ? 0 : KEEP_TARGET;
	if (syscall(SYS_renameat2, from, name, to, new_name, flags) != 0) {
		if (errno != EXDEV)
			return problem_set(problem, errno, "%.300s", request->path);
		if (is_below(from, name, to))
			return problem_set(problem, EINVAL, "%.300s is in %.150s", path, request->path);
		if (!move_across(request, from, name, to, new_name, problem))
			return false;
	}
	return place_send_entry(to, new_name, path, problem);
}
