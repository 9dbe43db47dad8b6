/* Operations on entries of directories that change no content. */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../levels.h"
#include "../protocol.h"
#include "operations.h"
#include "place.h"

#define DIRECTORY_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)

bool entries_stat(struct request *request, uint64_t *count, struct problem *problem)
{
	*count = 1;
	return place_send_path(request->path, (request->flags & FILE_FLAG_FOLLOW) != 0, problem);
}

/*
 * Describes the entry `name` of a directory, or its target if it is a symlink that is followed and does not dangle. The place has
 * a descriptor only when its attributes are requested, or of such a target; the caller closes it.
 */
static bool open_entry(int directory, const char *name, const struct request *request, struct place *place)
{
	bool follow = (request->flags & FILE_FLAG_FOLLOW) != 0;
	place->broken = 0;
	place->link[0] = '\0';
	place->fd = -1;
	if (fstatat(directory, name, &place->status, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0)
		return false;
	bool is_link = S_ISLNK(place->status.st_mode);
	if (is_link && follow)
		place->fd = openat(directory, name, O_PATH | O_CLOEXEC);
	else if (!is_link && (request->flags & FILE_FLAG_ATTRIBUTES) != 0)
		place->fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (is_link) {
		ssize_t size = place->fd >= 0 ? readlink(place_name(place->fd), place->link, sizeof place->link - 1)
					      : readlinkat(directory, name, place->link, sizeof place->link - 1);
		place->link[size > 0 ? size : 0] = '\0';
	}
	struct stat status;
	if (place->fd >= 0 && fstatat(place->fd, "", &status, AT_EMPTY_PATH | AT_NO_AUTOMOUNT) == 0)
		place->status = status;
	return true;
}

/* Sends the record of the entry at the present path. */
static bool send_entry(const struct request *request, const struct place *place, struct problem *problem)
{
	bool has_attributes = (request->flags & FILE_FLAG_ATTRIBUTES) != 0 && place->fd >= 0;
	return place_send(levels_path, place, has_attributes, problem) && place_progress(NULL, problem);
}

/* Lists the directory at level 0. Ends at the first failure to read that directory; deeper ones seem empty. */
static bool list(const struct request *request, uint64_t *count, struct problem *problem)
{
	struct place place;
	unsigned depth = 0;
	listing_begin(&listings[0]);
	for (;;) {
		const char *name = listing_next(&listings[depth], levels[depth].fd);
		if (name == NULL) {
			if (depth == 0 && errno != 0)
				return problem_set(problem, errno, "%.300s", request->path);
			close(levels[depth].fd);
			if (depth-- == 0)
				return true;
			continue;
		}
		/* No request can name what has a longer path, so it is left out. */
		if (!levels_set_path(&levels[depth], name) || strlen(levels_path) > PATH_MAX)
			continue;
		/* An entry may have vanished; of a directory that cannot be searched only the names can be read. */
		if (!open_entry(levels[depth].fd, name, request, &place))
			continue;
		bool sent = send_entry(request, &place, problem);
		if (place.fd >= 0)
			close(place.fd);
		if (!sent)
			return false;
		(*count)++;
		if (!S_ISDIR(place.status.st_mode) || place.link[0] != '\0' || depth + 1 >= request->depth)
			continue;
		int fd = openat(levels[depth].fd, name, DIRECTORY_FLAGS);
		if (fd < 0)
			continue;
		levels[++depth] = (struct level){.fd = fd, .path_bytes = strlen(levels_path)};
		listing_begin(&listings[depth]);
	}
}

bool entries_list(struct request *request, uint64_t *count, struct problem *problem)
{
	struct place place;
	if (!place_open(request->path, true, &place, problem))
		return false;
	if (place.broken != 0)
		return problem_set(problem, place.broken, "%.300s", request->path);
	/* The listing is that of the directory, wherever the path leads; the flag is about the entries. */
	place.link[0] = '\0';
	levels_path[0] = '\0';
	if (!send_entry(request, &place, problem))
		return false;
	*count = 1;
	if (!S_ISDIR(place.status.st_mode) || request->depth == 0)
		return true;
	levels[0] = (struct level){.fd = place_reopen(place.fd, O_RDONLY | O_DIRECTORY)};
	if (levels[0].fd < 0)
		return problem_set(problem, errno, "%.300s", request->path);
	return list(request, count, problem);
}

/* Gives a file the owner and mode of the request, as far as it has them. */
static bool change(const struct request *request, const struct place *place, struct problem *problem)
{
	if (!place_own(request, place->fd, problem))
		return false;
	/* After the owner, because chown clears set-id bits. The name is a symlink to the file, which chmod follows. */
	return (request->flags & FILE_FLAG_MODE) == 0 || chmod(place_name(place->fd), request->mode) == 0 ||
	       problem_set(problem, errno, "mode of %.300s", request->path);
}

bool entries_make_directory(struct request *request, uint64_t *count, struct problem *problem)
{
	char name[NAME_MAX + 1];
	struct place place;
	int parent = place_open_parent(request, request->path, name, problem);
	/* A path without a name, as "/" and "/a/..", is that of a directory that exists. */
	if (parent < 0 && problem->error != EINVAL)
		return false;
	*count = parent >= 0 && mkdirat(parent, name, 0777) == 0;
	int error = *count == 1 ? 0 : parent < 0 ? EEXIST : errno;
	if (parent >= 0)
		close(parent);
	if (error != 0 && (error != EEXIST || (request->flags & FILE_FLAG_EXCLUSIVE) != 0))
		return problem_set(problem, error, "%.300s", request->path);
	if (!place_open(request->path, error != 0, &place, problem))
		return false;
	if (!S_ISDIR(place.status.st_mode))
		return problem_set(problem, error != 0 ? error : ENOTDIR, "%.300s", request->path);
	if (error == 0 && !change(request, &place, problem))
		return false;
	return place_send_path(request->path, true, problem);
}

bool entries_change(struct request *request, uint64_t *count, struct problem *problem)
{
	bool follow = (request->flags & FILE_FLAG_FOLLOW) != 0;
	struct place place;
	*count = 0;
	if (!place_open(request->path, follow, &place, problem))
		return false;
	/* A symlink that dangles is not the file that the request is about. */
	if (follow && S_ISLNK(place.status.st_mode))
		return problem_set(problem, ENOENT, "%.300s", request->path);
	return change(request, &place, problem) && place_set_attributes(request, place.fd, problem) &&
	       place_send_path(request->path, follow, problem);
}
