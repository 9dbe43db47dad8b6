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
#include "erofs.h"
#include "extents.h"
#include "listing.h"
#include "protocol.h"
#include "record.h"

/* Deeper than any tree that tools can handle: a path of PATH_MAX bytes has at most 2048 components. */
#define DEPTH_MAX 2048
#define PATH_BYTES_MAX 65536
#define OPEN_FLAGS (O_RDONLY | O_NOFOLLOW | O_NOATIME | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

struct level {
	int fd; /* -1: a directory that was read from the disk itself, and not opened yet */
	size_t path_bytes;
	struct listing listing;
	struct erofs_directory directory; /* instead, where the disk itself is read */
};

/* Touched only as deep as the tree is, and only in the process that walks. */
static struct level levels[DEPTH_MAX + 1];
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

/* Emits the entry `name` of the directory at `depth`; a directory is then open at the next level. */
static bool visit(unsigned depth, const char *name, bool *is_directory, struct problem *problem)
{
	int directory = levels[depth].fd;
	struct stat status;
	int fd = -1;
	if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "status");
	*is_directory = S_ISDIR(status.st_mode);
	if (S_ISREG(status.st_mode) || *is_directory) {
		fd = openat(directory, name, *is_directory ? OPEN_FLAGS | O_DIRECTORY : OPEN_FLAGS);
		if (fd < 0)
			return problem_set(problem, errno, "open");
	}
	bool done = emit(directory, name, fd, &status, problem);
	if (done && *is_directory)
		levels[depth + 1].fd = fd;
	else if (fd >= 0)
		close(fd);
	return done;
}

/* The record of an entry that was read from the disk itself, and has no attributes. */
static bool emit_read(const struct erofs_inode *inode, struct problem *problem)
{
	const struct stat *status = &inode->status;
	struct record_head head = {.type = type_of(status), .status = status, .path_bytes = (uint32_t)strlen(path)};
	record_begin();
	if (!record_append(path, head.path_bytes))
		return problem_set(problem, E2BIG, "path");
	if (head.type == 'l') {
		const uint8_t *target;
		ssize_t size = erofs_read(inode, 0, &target);
		if (size < 0 || size != status->st_size || !record_append(target, (size_t)size))
			return problem_set(problem, size < 0 ? errno : ENAMETOOLONG, "target of the link");
		head.target_bytes = (uint32_t)size;
	}
	if (head.type == 'f' && status->st_size > 0) {
		if (!inode->is_plain)
			return problem_set(problem, EOPNOTSUPP, "content beside the inode");
		if (!extents_append_one(0, inode->start, (uint64_t)status->st_size))
			return problem_set(problem, E2BIG, "extents");
		head.extent_count = 1;
	}
	return record_end(&head) ? true : problem_set(problem, errno, "index stream");
}

/* Opens the directory at `depth`, and those above it, for the kernel to look into. */
static bool open_level(unsigned depth, struct problem *problem)
{
	unsigned at = depth;
	while (levels[at].fd < 0)
		at--;
	for (; at < depth; at++) {
		char name[EROFS_NAME_BYTES_MAX + 1] = {0};
		size_t start = levels[at].path_bytes + (levels[at].path_bytes > 0);
		memcpy(name, path + start, levels[at + 1].path_bytes - start);
		levels[at + 1].fd = openat(levels[at].fd, name, OPEN_FLAGS | O_DIRECTORY);
		if (levels[at + 1].fd < 0)
			return problem_set(problem, errno, "open");
	}
	return true;
}

/* As `visit`, but from the disk itself. Attributes are rare, and the kernel's business. */
static bool visit_read(unsigned depth, const struct erofs_entry *entry, bool *is_directory, struct problem *problem)
{
	struct level *next = &levels[depth + 1];
	struct erofs_inode *inode = &next->directory.inode;
	next->fd = -1;
	if (!erofs_inode(entry->inode, inode))
		return problem_set(problem, errno, "inode");
	if (inode->has_attributes)
		return open_level(depth, problem) && visit(depth, entry->name, is_directory, problem);
	*is_directory = S_ISDIR(inode->status.st_mode);
	return emit_read(inode, problem);
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

/* The next name in the directory of `level`; NULL at the end, or with errno set. */
static const char *next_name(struct level *level, bool read, struct erofs_entry *entry)
{
	if (!read)
		return listing_next(&level->listing, level->fd);
	return erofs_next(&level->directory, entry) ? entry->name : NULL;
}

/* `read`: from the disk itself. */
static bool walk(bool read, uint64_t *count, struct problem *problem)
{
	static struct erofs_entry entry;
	unsigned depth = 0;
	for (;;) {
		struct level *level = &levels[depth];
		const char *name = next_name(level, read, &entry);
		path[level->path_bytes] = '\0';
		if (name == NULL && errno != 0)
			return problem_set(problem, errno, "directory");
		if (name == NULL) {
			if (level->fd >= 0)
				close(level->fd);
			if (depth-- == 0)
				return true;
			continue;
		}
		bool is_directory;
		if (!set_path(level, name))
			return problem_set(problem, ENAMETOOLONG, "path over %d bytes", PATH_BYTES_MAX);
		if (!(read ? visit_read(depth, &entry, &is_directory, problem) : visit(depth, name, &is_directory, problem)))
			return false;
		(*count)++;
		if (!is_directory)
			continue;
		if (++depth == DEPTH_MAX)
			return problem_set(problem, ENAMETOOLONG, "directories nested over %d deep", DEPTH_MAX);
		levels[depth].path_bytes = strlen(path);
		listing_begin(&levels[depth].listing);
		levels[depth].directory.offset = 0;
		levels[depth].directory.entry = 0;
	}
}

/* Whether the disk itself can be read: then the walk begins at its directory `upper`, as below the mount. */
static bool open_disk(int disk)
{
	static struct erofs_entry entry;
	struct erofs_directory top = {.offset = 0};
	if (!erofs_open(disk) || !erofs_inode(erofs_root(), &top.inode) || !S_ISDIR(top.inode.status.st_mode))
		return false;
	while (erofs_next(&top, &entry))
		if (strcmp(entry.name, "upper") == 0)
			return erofs_inode(entry.inode, &levels[0].directory.inode) &&
			       S_ISDIR(levels[0].directory.inode.status.st_mode);
	return false;
}

bool walk_disk(int root, int disk, int out, uint64_t *count, struct problem *problem)
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
	if (!emit(root, "", root, &status, problem) || !walk(open_disk(disk), count, problem))
		return blame(problem);
	if (!record_stream_flush())
		return problem_set(problem, errno, "index stream");
	return true;
}
