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
#include "emulation/disk_walk.h"
#include "extents.h"
#include "levels.h"
#include "listing.h"
#include "protocol.h"
#include "record.h"

/* Puts the entry's path before the problem's text. */
static bool name_entry(struct problem *problem)
{
	char text[PROBLEM_TEXT_BYTES];
	memcpy(text, problem->text, sizeof text);
	snprintf(problem->text, sizeof problem->text, "index of /%.240s: %.240s", levels_path, text);
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

/* Writes the record of one entry and the records of its further extents. `fd`: a file or directory, or -1. */
static bool emit(int directory, const char *name, int fd, const struct stat *status, struct problem *problem)
{
	char proc_path[32 + NAME_MAX + 1];
	bool opaque = false;
	struct record_head head = {.type = record_type(status), .status = status};
	struct extents extents = {.fd = fd, .size = (uint64_t)status->st_size, .done = true};
	head.path_bytes = (uint32_t)strlen(levels_path);
	record_begin();
	if (!record_append(levels_path, head.path_bytes))
		return problem_set(problem, E2BIG, "path");
	if (head.type == 'l' && !append_target(directory, name, &head, problem))
		return false;
	/* No call reads attributes by directory and name, or by an O_PATH descriptor. */
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

/* Writes the entry `name` of the directory at `depth`. A directory is then open at the next level. */
static bool visit(unsigned depth, const char *name, bool *is_directory, struct problem *problem)
{
	int directory = levels[depth].fd;
	struct stat status;
	int fd = -1;
	if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "status");
	*is_directory = S_ISDIR(status.st_mode);
	if (S_ISREG(status.st_mode) || *is_directory) {
		fd = openat(directory, name, *is_directory ? LEVELS_OPEN_FLAGS | O_DIRECTORY : LEVELS_OPEN_FLAGS);
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

/* Like `visit`, but reads the disk directly if possible. */
static bool visit_direct(unsigned depth, const char *name, bool *is_directory, struct problem *problem)
{
	enum disk_visit result = disk_walk_visit(depth, is_directory, problem);
	if (result == DISK_VISIT_KERNEL)
		return visit(depth, name, is_directory, problem);
	return result == DISK_VISIT_DONE;
}

/* Walks the tree. `direct`: reads the disk directly. */
static bool walk(bool direct, uint64_t *count, struct problem *problem)
{
	unsigned depth = 0;
	for (;;) {
		const struct level *level = &levels[depth];
		const char *name = direct ? disk_walk_next(depth) : listing_next(&listings[depth], level->fd);
		levels_path[level->path_bytes] = '\0';
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
		if (!levels_set_path(level, name))
			return problem_set(problem, ENAMETOOLONG, "path over %d bytes", LEVELS_PATH_BYTES_MAX);
		if (!(direct ? visit_direct : visit)(depth, name, &is_directory, problem))
			return false;
		(*count)++;
		if (!is_directory)
			continue;
		if (++depth == LEVELS_DEPTH_MAX)
			return problem_set(problem, ENAMETOOLONG, "directories nested over %d deep", LEVELS_DEPTH_MAX);
		levels[depth].path_bytes = strlen(levels_path);
		if (direct)
			disk_walk_enter(depth);
		else
			listing_begin(&listings[depth]);
	}
}

bool walk_disk(int root, int disk, int out, uint64_t *count, struct problem *problem)
{
	/* One descriptor for each level, and some more. */
	struct rlimit files = {LEVELS_DEPTH_MAX + 64, LEVELS_DEPTH_MAX + 64};
	struct stat status;
	setrlimit(RLIMIT_NOFILE, &files);
	levels[0].fd = root;
	*count = 1;
	record_stream_open(out);
	if (fstat(root, &status) != 0)
		return problem_set(problem, errno, "index of /");
	if (!emit(root, "", root, &status, problem) || !walk(disk_walk_open(disk), count, problem))
		return name_entry(problem);
	if (!record_stream_flush())
		return problem_set(problem, errno, "index stream");
	return true;
}
