#include "disk_walk.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "../extents.h"
#include "../levels.h"
#include "../record.h"
#include "erofs.h"

/* Only the walking process touches it, and only as deep as the tree is. */
static struct erofs_directory directories[LEVELS_DEPTH_MAX + 1];
/* The entry that disk_walk_next has returned. */
static struct erofs_entry entry;

bool disk_walk_open(int disk)
{
	struct erofs_directory top = {.offset = 0};
	struct erofs_inode *upper = &directories[0].inode;
	if (!erofs_open(disk) || !erofs_inode(erofs_root(), &top.inode) || !S_ISDIR(top.inode.status.st_mode))
		return false;
	while (erofs_next(&top, &entry))
		if (strcmp(entry.name, "upper") == 0)
			return erofs_inode(entry.inode, upper) && S_ISDIR(upper->status.st_mode);
	return false;
}

void disk_walk_enter(unsigned depth)
{
	directories[depth].offset = 0;
	directories[depth].entry = 0;
}

const char *disk_walk_next(unsigned depth)
{
	return erofs_next(&directories[depth], &entry) ? entry.name : NULL;
}

/* Writes the record of an entry without attributes. */
static bool emit(const struct erofs_inode *inode, struct problem *problem)
{
	const struct stat *status = &inode->status;
	struct record_head head = {.type = record_type(status), .status = status, .path_bytes = (uint32_t)strlen(levels_path)};
	record_begin();
	if (!record_append(levels_path, head.path_bytes))
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
			return problem_set(problem, EOPNOTSUPP, "inline data");
		if (!extents_append_one(0, inode->start, (uint64_t)status->st_size))
			return problem_set(problem, E2BIG, "extents");
		head.extent_count = 1;
	}
	return record_end(&head) ? true : problem_set(problem, errno, "index stream");
}

/* Opens the directory at `depth` and those above it, for access through the kernel. */
static bool open_level(unsigned depth, struct problem *problem)
{
	unsigned at = depth;
	while (levels[at].fd < 0)
		at--;
	for (; at < depth; at++) {
		char name[EROFS_NAME_BYTES_MAX + 1] = {0};
		size_t start = levels[at].path_bytes + (levels[at].path_bytes > 0);
		memcpy(name, levels_path + start, levels[at + 1].path_bytes - start);
		levels[at + 1].fd = openat(levels[at].fd, name, LEVELS_OPEN_FLAGS | O_DIRECTORY);
		if (levels[at + 1].fd < 0)
			return problem_set(problem, errno, "open");
	}
	return true;
}

/* Leaves the rare entries with attributes to the kernel. */
enum disk_visit disk_walk_visit(unsigned depth, bool *is_directory, struct problem *problem)
{
	struct erofs_inode *inode = &directories[depth + 1].inode;
	levels[depth + 1].fd = -1;
	if (!erofs_inode(entry.inode, inode)) {
		problem_set(problem, errno, "inode");
		return DISK_VISIT_FAILED;
	}
	if (inode->has_attributes)
		return open_level(depth, problem) ? DISK_VISIT_KERNEL : DISK_VISIT_FAILED;
	*is_directory = S_ISDIR(inode->status.st_mode);
	return emit(inode, problem) ? DISK_VISIT_DONE : DISK_VISIT_FAILED;
}
