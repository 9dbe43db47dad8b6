/*
 * The union of layers, from the top down: what is found first under a name is what it is. With "rest" for the
 * layers that lie below those that are merged, and "in" for the highest of these that has the name:
 *
 *   in          next lower one of the merged that has it    what the union gets
 *   whiteout    any, none                                   a whiteout: the rest may have the name
 *   file (1)    any, none                                   the file; it hides a directory as a file does
 *   directory   none                                        the directory, opaque if it is opaque here
 *   directory   directory                                   one directory with the attributes of the upper one
 *               and the union of both, further down in turn until one is opaque
 *   opaque dir. any, none                                   the directory, opaque: nothing lower shows
 *   directory   whiteout, or file (1)                       the directory, opaque: that hid the rest, too
 *   (1) or link, device, FIFO, socket
 *
 * Below a directory that hides the rest no whiteout is needed, and overlayfs would show one that it does not
 * expect, so they are left out there. Where whiteouts stay, the directory is marked as one that has them: the
 * rest may have no such directory, and overlayfs looks for whiteouts only where it believes that there are some.
 * The roots always merge, opaque or not.
 *
 * Links between names of one layer are kept. A name whose other names are hidden shows the number of links that it
 * has had: the missing ones are made in a directory that is no part of the layer.
 */
#include "union.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "copy.h"
#include "listing.h"
#include "platform.h"
#include "protocol.h"

/* As deep as an index can be. */
#define DEPTH_MAX 2048
#define FILES_COUNT_MAX 1048576
#define DIRECTORY_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC)
#define LINKS "merge"
/* Layer, inode and number of links; a dot behind it: one of the links that stay. */
#define LINK_FORMAT "%u-%llu-%u"
#define LINK_BYTES 64

struct level {
	int to;
	unsigned place_count;
	unsigned place; /* the one that is being read */
	bool closed; /* nothing of the rest shows */
	bool opaque; /* because of what is right here */
	bool whiteouts;
	struct listing listing;
	int places[LAYERS_COUNT_MAX]; /* the directory in those layers that have it, the topmost first */
	uint8_t layers[LAYERS_COUNT_MAX];
};

/* Touched only as deep as the tree is, and only in the process that merges. */
static struct level levels[DEPTH_MAX];
static int links = -1;
static uint64_t made;

static bool is_whiteout(const struct stat *status)
{
	return S_ISCHR(status->st_mode) && status->st_rdev == 0;
}

static bool add_place(struct level *level, int fd, unsigned layer, struct problem *problem)
{
	if (fd < 0)
		return problem_set(problem, errno, "directory");
	level->places[level->place_count] = fd;
	level->layers[level->place_count++] = (uint8_t)layer;
	return true;
}

/* The directory `name` of the place that `parent` reads, and of those below it that merge with it. */
static bool find_places(struct level *level, const struct level *parent, const char *name, struct problem *problem)
{
	level->place_count = 0;
	level->opaque = false;
	for (unsigned at = parent->place; at < parent->place_count && !level->opaque; at++) {
		struct stat status;
		if (fstatat(parent->places[at], name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
			if (errno != ENOENT)
				return problem_set(problem, errno, "status");
			continue;
		}
		level->opaque = !S_ISDIR(status.st_mode);
		if (level->opaque)
			break;
		if (!add_place(level, openat(parent->places[at], name, DIRECTORY_FLAGS), parent->layers[at], problem))
			return false;
		level->opaque = copy_is_opaque(level->places[level->place_count - 1]);
	}
	level->closed = parent->closed || level->opaque;
	return true;
}

static bool enter(unsigned depth, const char *name, struct problem *problem)
{
	struct level *level = &levels[depth];
	const struct level *parent = &levels[depth - 1];
	/* Whoever may enter it is said at the end. */
	if (mkdirat(parent->to, name, 0700) != 0)
		return problem_set(problem, errno, "create");
	level->to = openat(parent->to, name, DIRECTORY_FLAGS);
	if (level->to < 0)
		return problem_set(problem, errno, "open");
	level->place = 0;
	level->whiteouts = false;
	listing_begin(&level->listing);
	return find_places(level, parent, name, problem);
}

/* The file as a link to the one of its names that was copied before; sets `found`. */
static bool link_again(int to, const char *name, const char *key, bool *found, struct problem *problem)
{
	*found = linkat(links, key, to, name, 0) == 0;
	/* With as many names as a file can have, the link that is kept to find it by is itself the last of them. */
	if (!*found && errno == EMLINK)
		*found = renameat(links, key, to, name) == 0;
	return *found || errno == ENOENT || problem_set(problem, errno, "hard link");
}

static bool add_object(const struct level *level, const char *name, const struct stat *status, struct problem *problem)
{
	int from = level->places[level->place];
	char key[LINK_BYTES];
	bool found = false;
	if (status->st_nlink <= 1)
		return copy_object(from, level->to, name, status, problem);
	snprintf(key, sizeof key, LINK_FORMAT, level->layers[level->place], (unsigned long long)status->st_ino,
		(unsigned)status->st_nlink);
	if (!link_again(level->to, name, key, &found, problem))
		return false;
	if (found)
		return true;
	if (!copy_object(from, level->to, name, status, problem))
		return false;
	return linkat(level->to, name, links, key, 0) == 0 || problem_set(problem, errno, "hard link");
}

/* Adds what the current place has under `name`; `directory` tells whether to go down. */
static bool add(struct level *level, const char *name, bool *directory, struct problem *problem)
{
	struct stat status;
	*directory = false;
	/* What a higher place gave is what there is; whiteouts are left out only at the end, so they count here. */
	if (level->place > 0 && fstatat(level->to, name, &status, AT_SYMLINK_NOFOLLOW) == 0)
		return true;
	if (fstatat(level->places[level->place], name, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "status");
	made++;
	*directory = S_ISDIR(status.st_mode);
	if (*directory)
		return true;
	if (!is_whiteout(&status))
		return add_object(level, name, &status, problem);
	level->whiteouts = true;
	return mknodat(level->to, name, S_IFCHR, 0) == 0 || problem_set(problem, errno, "whiteout");
}

static bool remove_whiteouts(struct level *level, struct problem *problem)
{
	const char *name;
	listing_begin(&level->listing);
	while ((name = listing_next(&level->listing, level->to)) != NULL) {
		struct stat status;
		if (fstatat(level->to, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
			return problem_set(problem, errno, "status");
		if (!is_whiteout(&status))
			continue;
		if (unlinkat(level->to, name, 0) != 0)
			return problem_set(problem, errno, "whiteout");
		made--;
	}
	return errno == 0 || problem_set(problem, errno, "directory");
}

/* The attributes of a directory whose entries are all there. */
static bool leave(struct level *level, bool root, struct problem *problem)
{
	struct stat status;
	if (level->closed && level->whiteouts && !remove_whiteouts(level, problem))
		return false;
	if (level->opaque && !root && !copy_set_opaque(level->to, problem))
		return false;
	if (level->whiteouts && !level->closed && !copy_set_whiteouts(level->to, problem))
		return false;
	if (fstat(level->places[0], &status) != 0)
		return problem_set(problem, errno, "status");
	if (!copy_attributes(level->places[0], level->to, &status, problem))
		return false;
	for (unsigned at = 0; at < level->place_count; at++)
		close(level->places[at]);
	close(level->to);
	return true;
}

static bool walk(char name_of_last[NAME_MAX + 1], struct problem *problem)
{
	for (unsigned depth = 0;;) {
		struct level *level = &levels[depth];
		const char *name = listing_next(&level->listing, level->places[level->place]);
		bool directory;
		if (name == NULL && errno != 0)
			return problem_set(problem, errno, "directory");
		if (name == NULL) {
			listing_begin(&level->listing);
			if (++level->place < level->place_count)
				continue;
			if (!leave(level, depth == 0, problem))
				return false;
			if (depth-- == 0)
				return true;
			continue;
		}
		snprintf(name_of_last, NAME_MAX + 1, "%s", name);
		if (!add(level, name, &directory, problem))
			return false;
		if (!directory)
			continue;
		if (++depth == DEPTH_MAX)
			return problem_set(problem, ENAMETOOLONG, "directories nested over %d deep", DEPTH_MAX);
		if (!enter(depth, name, problem))
			return false;
	}
}

/* Gives one file the number of links that it has had; its first extra link is `key`. */
static bool settle_link(const char *key, struct problem *problem)
{
	struct stat status;
	const char *last = strrchr(key, '-');
	if (last == NULL || strchr(last, '.') != NULL)
		return true;
	unsigned long wanted = strtoul(last + 1, NULL, 10);
	if (fstatat(links, key, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "hard link");
	if (status.st_nlink > wanted)
		return unlinkat(links, key, 0) == 0 || problem_set(problem, errno, "hard link");
	for (unsigned long count = status.st_nlink; count < wanted; count++) {
		char extra[LINK_BYTES + 24];
		snprintf(extra, sizeof extra, "%s.%lu", key, count);
		if (linkat(links, key, links, extra, 0) != 0)
			return problem_set(problem, errno, "hard link");
	}
	return true;
}

static bool settle_links(struct problem *problem)
{
	struct listing *listing = &levels[0].listing;
	const char *name;
	listing_begin(listing);
	while ((name = listing_next(listing, links)) != NULL)
		if (!settle_link(name, problem))
			return false;
	return errno == 0 || problem_set(problem, errno, "hard links");
}

static bool open_root(unsigned count, struct problem *problem)
{
	char path[PATH_MAX];
	struct level *root = &levels[0];
	snprintf(path, sizeof path, "%s/s/upper", platform_prefix());
	root->to = open(path, DIRECTORY_FLAGS);
	if (root->to < 0)
		return problem_set(problem, errno, "upper directory");
	listing_begin(&root->listing);
	for (unsigned number = count; number-- > 0;) {
		snprintf(path, sizeof path, "%s/l/%02u/upper", platform_prefix(), number);
		if (!add_place(root, open(path, DIRECTORY_FLAGS), number, problem))
			return false;
	}
	snprintf(path, sizeof path, "%s/s/" LINKS, platform_prefix());
	if (mkdir(path, 0700) != 0)
		return problem_set(problem, errno, "directory of links");
	links = open(path, DIRECTORY_FLAGS);
	return links >= 0 || problem_set(problem, errno, "directory of links");
}

bool union_layers(unsigned count, uint64_t *entries, struct problem *problem)
{
	/* A level has as many descriptors as layers have its directory. */
	struct rlimit files = {FILES_COUNT_MAX, FILES_COUNT_MAX};
	char name[NAME_MAX + 1] = "";
	char text[PROBLEM_TEXT_BYTES];
	setrlimit(RLIMIT_NOFILE, &files);
	made = 1;
	bool done = open_root(count, problem) && walk(name, problem) && settle_links(problem);
	*entries = made;
	if (!done) {
		memcpy(text, problem->text, sizeof text);
		snprintf(problem->text, sizeof problem->text, "merge, at %.240s: %.240s", name, text);
	}
	return done;
}
