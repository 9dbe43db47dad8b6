#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../bytes.h"
#include "../clock.h"
#include "../protocol.h"
#include "../record.h"
#include "users.h"

#define PROGRESS_NS 1000000000ULL
#define NAMESPACE "user."

const char *place_name(int fd)
{
	/* The working directory of a visitor is that of its descriptors. */
	static char name[12];
	snprintf(name, sizeof name, "%d", fd);
	return name;
}

static bool read_link(struct place *place, bool followed)
{
	ssize_t size = followed ? readlink(place_name(place->fd), place->link, sizeof place->link - 1)
				: readlinkat(place->fd, "", place->link, sizeof place->link - 1);
	place->link[size > 0 ? size : 0] = '\0';
	return size >= 0;
}

static bool read_status(struct place *place)
{
	return fstatat(place->fd, "", &place->status, AT_EMPTY_PATH | AT_NO_AUTOMOUNT) == 0;
}

bool place_open(const char *path, bool follow, struct place *place, struct problem *problem)
{
	place->broken = 0;
	place->link[0] = '\0';
	place->fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (place->fd < 0 || !read_status(place))
		return problem_set(problem, errno, "%.300s", path);
	if (!S_ISLNK(place->status.st_mode))
		return true;
	int target = follow ? open(path, O_PATH | O_CLOEXEC) : -1;
	place->broken = follow && target < 0 ? errno : 0;
	if (target >= 0) {
		close(place->fd);
		place->fd = target;
	}
	return (read_status(place) && read_link(place, target >= 0)) || problem_set(problem, errno, "%.300s", path);
}

int place_reopen(int fd, int flags)
{
	return open(place_name(fd), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

int place_open_regular(const struct place *place, const char *path, int flags, struct problem *problem)
{
	int error = ENOTSUP;
	if (S_ISREG(place->status.st_mode)) {
		int fd = place_reopen(place->fd, flags);
		if (fd >= 0)
			return fd;
		error = errno;
	} else if (S_ISDIR(place->status.st_mode)) {
		error = EISDIR;
	} else if (place->broken != 0) {
		error = place->broken;
	}
	problem_set(problem, error, "%.300s", path);
	return -1;
}

bool place_own(const struct request *request, int fd, struct problem *problem)
{
	return (request->flags & FILE_FLAG_OWNER) == 0 ||
	       fchownat(fd, "", request->owner_uid, request->owner_gid, AT_EMPTY_PATH) == 0 ||
	       problem_set(problem, errno, "owner");
}

/* Opens the directory `name` of `parent`, which is made if the request says so. Closes the parent. */
static int step(const struct request *request, int parent, const char *name, struct problem *problem)
{
	int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	bool makes = fd < 0 && errno == ENOENT && (request->flags & FILE_FLAG_PARENTS) != 0;
	/* EEXIST: a dangling symlink, which the second open reports, or another program was faster. */
	bool made = makes && mkdirat(parent, name, 0755) == 0;
	if (made || (makes && errno == EEXIST))
		fd = openat(parent, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		problem_set(problem, errno, "directory %.300s", name);
	close(parent);
	if (!made || fd < 0 || place_own(request, fd, problem))
		return fd;
	close(fd);
	return -1;
}

int place_open_parent(const struct request *request, const char *path, char name[NAME_MAX + 1], struct problem *problem)
{
	int parent = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (parent < 0)
		problem_set(problem, errno, "/");
	/* One component after the other, because a symlink in the path may lead to another directory. */
	while (parent >= 0) {
		path += strspn(path, "/");
		size_t length = strcspn(path, "/");
		if (length > NAME_MAX) {
			problem_set(problem, ENAMETOOLONG, "name of %zu bytes", length);
			break;
		}
		memcpy(name, path, length);
		name[length] = '\0';
		path += length;
		if (path[strspn(path, "/")] != '\0') {
			parent = step(request, parent, name, problem);
			continue;
		}
		if (length > 0 && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
			return parent;
		problem_set(problem, EINVAL, "path without a name");
		break;
	}
	if (parent >= 0)
		close(parent);
	return -1;
}

bool place_set_attributes(struct request *request, int fd, struct problem *problem)
{
	struct string name;
	struct string value;
	while (request_take(request, &name) && request_take(request, &value)) {
		if (name.bytes == NULL || strncmp(name.bytes, NAMESPACE, strlen(NAMESPACE)) != 0)
			return problem_set(problem, EINVAL, "attribute that is not one of " NAMESPACE);
		int result = value.bytes == NULL ? removexattr(place_name(fd), name.bytes)
						 : setxattr(place_name(fd), name.bytes, value.bytes, value.size, 0);
		if (result != 0 && (value.bytes != NULL || errno != ENODATA))
			return problem_set(problem, errno, "attribute %.255s", name.bytes);
	}
	return true;
}

/* Reads the attributes of a user, as many as fit. Returns their size. */
static size_t read_attributes(const struct place *place, uint8_t bytes[FILE_ATTRIBUTES_BYTES_MAX])
{
	static char names[XATTR_LIST_MAX];
	size_t at = 0;
	if (!S_ISREG(place->status.st_mode) && !S_ISDIR(place->status.st_mode))
		return 0;
	ssize_t size = listxattr(place_name(place->fd), names, sizeof names);
	for (const char *name = names; size > 0 && name < names + size; name += strlen(name) + 1) {
		size_t length = strlen(name);
		size_t left = FILE_ATTRIBUTES_BYTES_MAX - at;
		if (strncmp(name, NAMESPACE, strlen(NAMESPACE)) != 0 || left <= 4 + length)
			continue;
		ssize_t value = getxattr(place_name(place->fd), name, bytes + at + 4 + length, left - 4 - length);
		if (value < 0)
			continue;
		put_u16(bytes + at, (uint16_t)length);
		put_u16(bytes + at + 2, (uint16_t)value);
		memcpy(bytes + at + 4, name, length);
		at += 4 + length + (size_t)value;
	}
	return at;
}

bool place_send(const char *path, const struct place *place, bool attributes, struct problem *problem)
{
	uint8_t head[FILE_ENTRY_FIXED_BYTES];
	uint8_t bytes[FILE_ATTRIBUTES_BYTES_MAX];
	const struct stat *status = &place->status;
	const char *const texts[] = {path, place->link, users_name(status->st_uid), users_group_name(status->st_gid)};
	size_t attributes_size = attributes ? read_attributes(place, bytes) : 0;
	size_t size = sizeof head + attributes_size;
	for (int i = 0; i < 4; i++) {
		put_u16(head + 44 + 2 * i, (uint16_t)strlen(texts[i]));
		size += strlen(texts[i]);
	}
	put_u32(head, (uint32_t)size);
	put_u32(head + 4, status->st_mode);
	put_u32(head + 8, status->st_uid);
	put_u32(head + 12, status->st_gid);
	put_u64(head + 16, (uint64_t)status->st_size);
	put_u64(head + 24, (uint64_t)status->st_mtim.tv_sec * 1000000000 + (uint64_t)status->st_mtim.tv_nsec);
	put_u64(head + 32, status->st_ino);
	put_u32(head + 40, (uint32_t)status->st_nlink);
	put_u32(head + 52, (uint32_t)attributes_size);
	bool done = record_stream_put(head, sizeof head);
	for (int i = 0; i < 4; i++)
		done = done && record_stream_put(texts[i], strlen(texts[i]));
	done = done && record_stream_put(bytes, attributes_size);
	return done || problem_set(problem, errno, "stream of the visitor");
}

bool place_send_path(const char *path, bool follow, struct problem *problem)
{
	struct place place;
	return place_open(path, follow, &place, problem) && place_send(path, &place, true, problem);
}

bool place_send_entry(int parent, const char *name, const char *path, struct problem *problem)
{
	struct place place = {.fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC)};
	if (place.fd < 0 || !read_status(&place) || (S_ISLNK(place.status.st_mode) && !read_link(&place, false)))
		return problem_set(problem, errno, "%.300s", path);
	return place_send(path, &place, true, problem);
}

bool place_progress(const uint64_t *number, struct problem *problem)
{
	static uint64_t last_ns;
	uint8_t record[FILE_PROGRESS_BYTES];
	uint64_t now_ns = clock_now();
	if (last_ns == 0)
		last_ns = now_ns;
	if (now_ns - last_ns < PROGRESS_NS)
		return true;
	last_ns = now_ns;
	put_u32(record, sizeof record);
	put_u64(record + 4, number == NULL ? 0 : *number);
	return ((number == NULL || record_stream_put(record, sizeof record)) && record_stream_flush()) ||
	       problem_set(problem, errno, "stream of the visitor");
}
