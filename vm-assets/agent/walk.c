#include "walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attributes.h"
#include "extents.h"
#include "listing.h"
#include "protocol.h"
#include "record.h"

/* Deeper than any tree that tools can handle: a path of PATH_MAX bytes has at most 2048 components. */
#define DEPTH_MAX 2048
#define PATH_BYTES_MAX 65536
#define OPEN_FLAGS (O_RDONLY | O_NOFOLLOW | O_NOATIME | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

struct level {
	int fd;
	size_t path_bytes;
	struct listing listing;
};

/* Touched only as deep as the tree is, and only in the process that walks. */
static struct level levels[DEPTH_MAX];
static char path[PATH_BYTES_MAX];

static uint8_t type_of(const struct stat *status)
{
	switch (status->st_mode & S_IFMT) {
	case S_IFDIR:
		return 'd';
	case S_IFLNK:
		return 'l';
	case S_IFBLK:
		return 'b';
	case S_IFCHR:
		return status->st_rdev == 0 ? 'w' : 'c';
	case S_IFIFO:
		return 'p';
	case S_IFSOCK:
		return 's';
	default:
		return 'f';
	}
}

/* Names the entry in the problem; the text of what failed comes after it. */
static bool blame(struct problem *problem)
{
	char text[PROBLEM_TEXT_BYTES];
	memcpy(text, problem->text, sizeof text);
	snprintf(problem->text, sizeof problem->text, "index of /%.240s: %.240s", path, text);
	return false;
}

static bool append_target(int directory, const char *name, struct record_head *head, struct problem *problem)
{
	uint8_t *room = record_room(PATH_MAX);
	ssize_t size = room == NULL ? -1 : readlinkat(directory, name, (char *)room, PATH_MAX);
	if (size < 0)
		return problem_set(problem, room == NULL ? E2BIG : errno, "target of the link");
	record_take((size_t)size);
	head->target_bytes = (uint32_t)size;
	return true;
}

/* The record of one entry, and those of its further extents. `fd`: a file or directory, else -1. */
static bool emit(int directory, const char *name, int fd, const struct stat *status, struct problem *problem)
{
	char proc_path[32 + NAME_MAX + 1];
	bool opaque = false;
	struct record_head head = {.type = type_of(status), .status = status};
	struct extents extents = {.fd = fd, .size = (uint64_t)status->st_size, .done = true};
	head.path_bytes = (uint32_t)strlen(path);
	record_begin();
	if (!record_append(path, head.path_bytes))
		return problem_set(problem, E2BIG, "path");
	if (head.type == 'l' && !append_target(directory, name, &head, problem))
		return false;
	/* There is no call that reads attributes by directory and name, nor by an O_PATH descriptor. */
	if (fd < 0 && head.type != 'w')
		snprintf(proc_path, sizeof proc_path, "/proc/self/fd/%d/%s", directory, name);
	if (head.type != 'w' && !attributes_append(fd, proc_path, &head.xattr_count, &opaque, problem))
		return false;
	if (opaque && head.type == 'd')
		head.flags |= INDEX_FLAG_OPAQUE;
	if (head.type == 'f' && status->st_size > 0) {
		extents.done = false;
		if (!extents_append(&extents, &head.extent_count, problem))
			return false;
	}
	if (!record_end(&head))
		return problem_set(problem, errno, "index stream");
	while (!extents.done) {
		struct record_head more = {.type = 'x'};
		record_begin();
		if (!extents_append(&extents, &more.extent_count, problem))
			return false;
		if (more.extent_count > 0 && !record_end(&more))
			return problem_set(problem, errno, "index stream");
	}
	return true;
}

/* Emits the entry `name`; `child` is an open directory to go down into, or -1. */
static bool visit(const struct level *level, const char *name, int *child, struct problem *problem)
{
	struct stat status;
	int fd = -1;
	*child = -1;
	if (fstatat(level->fd, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "status");
	if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
		fd = openat(level->fd, name, S_ISDIR(status.st_mode) ? OPEN_FLAGS | O_DIRECTORY : OPEN_FLAGS);
		if (fd < 0)
			return problem_set(problem, errno, "open");
	}
	bool done = emit(level->fd, name, fd, &status, problem);
	if (done && S_ISDIR(status.st_mode))
		*child = fd;
	else if (fd >= 0)
		close(fd);
	return done;
}

/* Sets `path` to the entry `name` of the directory of `level`; false when it does not fit. */
static bool set_path(const struct level *level, const char *name)
{
	size_t at = level->path_bytes;
	size_t length = strlen(name);
	if (at + 1 + length + 1 > sizeof path)
		return false;
	if (at > 0)
		path[at++] = '/';
	memcpy(path + at, name, length + 1);
	return true;
}

static bool walk(uint64_t *count, struct problem *problem)
{
	unsigned depth = 0;
	for (;;) {
		struct level *level = &levels[depth];
		const char *name = listing_next(&level->listing, level->fd);
		path[level->path_bytes] = '\0';
		if (name == NULL && errno != 0)
			return problem_set(problem, errno, "directory");
		if (name == NULL) {
			close(level->fd);
			if (depth-- == 0)
				return true;
			continue;
		}
		int child;
		if (!set_path(level, name))
			return problem_set(problem, ENAMETOOLONG, "path over %d bytes", PATH_BYTES_MAX);
		if (!visit(level, name, &child, problem))
			return false;
		(*count)++;
		if (child < 0)
			continue;
		if (++depth == DEPTH_MAX)
			return problem_set(problem, ENAMETOOLONG, "directories nested over %d deep", DEPTH_MAX);
		levels[depth].fd = child;
		levels[depth].path_bytes = strlen(path);
		listing_begin(&levels[depth].listing);
	}
}

bool walk_disk(int root, int out, uint64_t *count, struct problem *problem)
{
	/* One descriptor a level, and a few. */
	struct rlimit files = {DEPTH_MAX + 64, DEPTH_MAX + 64};
	struct stat status;
	setrlimit(RLIMIT_NOFILE, &files);
	levels[0].fd = root;
	*count = 1;
	record_stream_open(out);
	if (fstat(root, &status) != 0)
		return problem_set(problem, errno, "index of /");
	if (!emit(root, "", root, &status, problem) || !walk(count, problem))
		return blame(problem);
	if (!record_stream_flush())
		return problem_set(problem, errno, "index stream");
	return true;
}
