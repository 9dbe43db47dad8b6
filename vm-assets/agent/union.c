/*
 * Merges layers from the top down: for each name, the highest entry counts. "Rest" means the layers below the merged ones.
 *
 *   highest entry   next lower entry     merged entry
 *   whiteout        any, none            a whiteout, because the rest may have the name
 *   file (1)        any, none            the file; it hides a directory like a whiteout does
 *   directory       none                 the directory, opaque if this one is
 *   directory       directory            one directory with the attributes of the higher one and the merged entries of
 *                                        both, continued downwards until one is opaque
 *   opaque dir.     any, none            the directory, opaque: nothing lower is visible
 *   directory       whiteout, file (1)   the directory, opaque, because the lower entry hid the rest
 *   (1) or link, device, FIFO, socket
 *
 * A directory that hides the rest needs no whiteouts, and overlayfs would show those that it does not expect, so they are
 * omitted there. Other directories with whiteouts are marked: the rest may not have such a directory, and overlayfs looks
 * for whiteouts only where it expects them. The roots always merge, opaque or not.
 *
 * Hard links within a layer are preserved. When some names of a file are hidden, the visible ones keep the file's number
 * of links: the missing links are made in a directory that is not part of the layer.
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

/* The limit of an index, too. */
#define DEPTH_MAX 2048
#define OPEN_COUNT_MAX 1048576
#define DIRECTORY_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC)
#define LINKS "merge"
/* Layer, inode and number of links. Names with a dot after that are links that stay. */
#define LINK_FORMAT "%u-%llu-%u"
#define LINK_BYTES 64

struct level {
	int to;
	unsigned source_count;
	unsigned source; /* index of the directory that is being read */
	bool closed; /* nothing of the rest is visible */
	bool opaque; /* because of an entry at this level */
	bool whiteouts;
	struct listing listing;
	int sources[LAYERS_COUNT_MAX]; /* the directory in the layers that have it, topmost first */
	uint8_t layers[LAYERS_COUNT_MAX];
};

/* Only the merging process touches it, and only as deep as the tree is. */
static struct level levels[DEPTH_MAX];
static int links = -1;
static uint64_t entry_count;

static bool is_whiteout(const struct stat *status)
{
	return S_ISCHR(status->st_mode) && status->st_rdev == 0;
}

static bool add_source(struct level *level, int fd, unsigned layer, struct problem *problem)
{
	if (fd < 0)
		return problem_set(problem, errno, "directory");
	level->sources[level->source_count] = fd;
	level->layers[level->source_count++] = (uint8_t)layer;
	return true;
}

/* Opens the directory `name` of the current source of `parent`, and the lower ones that merge with it. */
static bool find_sources(struct level *level, const struct level *parent, const char *name, struct problem *problem)
{
	level->source_count = 0;
	level->opaque = false;
	for (unsigned at = parent->source; at < parent->source_count && !level->opaque; at++) {
		struct stat status;
		if (fstatat(parent->sources[at], name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
			if (errno != ENOENT)
				return problem_set(problem, errno, "status");
			continue;
		}
		level->opaque = !S_ISDIR(status.st_mode);
		if (level->opaque)
			break;
		if (!add_source(level, openat(parent->sources[at], name, DIRECTORY_FLAGS), parent->layers[at], problem))
			return false;
		level->opaque = copy_is_opaque(level->sources[level->source_count - 1]);
	}
	level->closed = parent->closed || level->opaque;
	return true;
}

static bool enter(unsigned depth, const char *name, struct problem *problem)
{
	struct level *level = &levels[depth];
	const struct level *parent = &levels[depth - 1];
	/* The final mode is set when all entries exist. */
	if (mkdirat(parent->to, name, 0700) != 0)
		return problem_set(problem, errno, "create");
	level->to = openat(parent->to, name, DIRECTORY_FLAGS);
	if (level->to < 0)
		return problem_set(problem, errno, "open");
	level->source = 0;
	level->whiteouts = false;
	listing_begin(&level->listing);
	return find_sources(level, parent, name, problem);
}

/* Links to the copy of the file under an earlier name. `found` tells whether there is one. */
static bool link_again(int to, const char *name, const char *key, bool *found, struct problem *problem)
{
	*found = linkat(links, key, to, name, 0) == 0;
	/* A file with the maximum number of names: the link that served to find it becomes its last name. */
	if (!*found && errno == EMLINK)
		*found = renameat(links, key, to, name) == 0;
	return *found || errno == ENOENT || problem_set(problem, errno, "hard link");
}

static bool add_object(const struct level *level, const char *name, const struct stat *status, struct problem *problem)
{
	int from = level->sources[level->source];
	char key[LINK_BYTES];
	bool found = false;
	if (status->st_nlink <= 1)
		return copy_object(from, name, level->to, name, status, problem);
	snprintf(key, sizeof key, LINK_FORMAT, level->layers[level->source], (unsigned long long)status->st_ino,
		(unsigned)status->st_nlink);
	if (!link_again(level->to, name, key, &found, problem))
		return false;
	if (found)
		return true;
	if (!copy_object(from, name, level->to, name, status, problem))
		return false;
	return linkat(level->to, name, links, key, 0) == 0 || problem_set(problem, errno, "hard link");
}

/* Adds the entry `name` of the current source. `directory` tells whether to descend. */
static bool add(struct level *level, const char *name, bool *directory, struct problem *problem)
{
	struct stat status;
	*directory = false;
	/* An entry of a higher source takes precedence. Whiteouts count as well, because they are removed only at the end. */
	if (level->source > 0 && fstatat(level->to, name, &status, AT_SYMLINK_NOFOLLOW) == 0)
		return true;
	if (fstatat(level->sources[level->source], name, &status, AT_SYMLINK_NOFOLLOW) != 0)
		return problem_set(problem, errno, "status");
	entry_count++;
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
		entry_count--;
	}
	return errno == 0 || problem_set(problem, errno, "directory");
}

/* Sets the attributes of a directory whose entries are complete. */
static bool leave(struct level *level, bool root, struct problem *problem)
{
	struct stat status;
	if (level->closed && level->whiteouts && !remove_whiteouts(level, problem))
		return false;
	if (level->opaque && !root && !copy_set_opaque(level->to, problem))
		return false;
	if (level->whiteouts && !level->closed && !copy_set_whiteouts(level->to, problem))
		return false;
	if (fstat(level->sources[0], &status) != 0)
		return problem_set(problem, errno, "status");
	if (!copy_attributes(level->sources[0], level->to, &status, problem))
		return false;
	for (unsigned at = 0; at < level->source_count; at++)
		close(level->sources[at]);
	close(level->to);
	return true;
}

static bool walk(char name_of_last[NAME_MAX + 1], struct problem *problem)
{
	for (unsigned depth = 0;;) {
		struct level *level = &levels[depth];
		const char *name = listing_next(&level->listing, level->sources[level->source]);
		bool directory;
		if (name == NULL && errno != 0)
			return problem_set(problem, errno, "directory");
		if (name == NULL) {
			listing_begin(&level->listing);
			if (++level->source < level->source_count)
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

/* Restores the number of links of one file, whose additional link is `key`. */
static bool restore_link_count(const char *key, struct problem *problem)
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

static bool restore_link_counts(struct problem *problem)
{
	struct listing *listing = &levels[0].listing;
	const char *name;
	listing_begin(listing);
	while ((name = listing_next(listing, links)) != NULL)
		if (!restore_link_count(name, problem))
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
		if (!add_source(root, open(path, DIRECTORY_FLAGS), number, problem))
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
	/* Each level has a descriptor for every layer that has its directory. */
	struct rlimit files = {OPEN_COUNT_MAX, OPEN_COUNT_MAX};
	char name[NAME_MAX + 1] = "";
	char text[PROBLEM_TEXT_BYTES];
	setrlimit(RLIMIT_NOFILE, &files);
	entry_count = 1;
	bool done = open_root(count, problem) && walk(name, problem) && restore_link_counts(problem);
	*entries = entry_count;
	if (!done) {
		memcpy(text, problem->text, sizeof text);
		snprintf(problem->text, sizeof problem->text, "merge, at %.240s: %.240s", name, text);
	}
	return done;
}
