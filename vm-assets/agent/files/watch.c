/*
 * Watches of directories. The kernel bounds the events that wait while the host does not read, and says when it dropped some.
 * Directories below the watched one have no open descriptor, which would keep a removed one alive: they are found again by
 * their names from the watched one, without symlinks.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../bytes.h"
#include "../listing.h"
#include "../protocol.h"
#include "../record.h"
#include "operations.h"
#include "place.h"
#include "visit.h"

#define MASK (IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR)
#define ROOT 0U
#define NONE UINT32_MAX
/* The kernel tells nothing of the removal of the watched directory, which is open; it is looked for at this interval. */
#define GONE_MS 1000

static struct node {
	uint32_t parent;
	char name[NAME_MAX + 1];
} nodes[FILE_WATCHES_COUNT_MAX];
/* Their watches; 0: the node is free. In an array of their own, because every event searches them. */
static int watches[FILE_WATCHES_COUNT_MAX];
/* Nodes from this one on were never used. */
static uint32_t nodes_end;
static int notifier;
static int root;
static bool recursive;
/* A directory could not be watched, because there are too many. */
static bool full;

static bool send_event(uint32_t node, const char *name, uint32_t type, uint32_t cookie)
{
	static char path[PATH_MAX];
	uint8_t head[FILE_WATCH_FIXED_BYTES] = {0};
	size_t at = sizeof path;
	/* From the end to the beginning. A path that is longer keeps its end, as no file can be reached by it anyway. */
	for (; node != NONE; name = nodes[node].name, node = nodes[node].parent) {
		size_t length = strlen(name);
		if (length == 0 || at < length + 1)
			continue;
		if (at < sizeof path)
			path[--at] = '/';
		at -= length;
		memcpy(path + at, name, length);
	}
	size_t size = sizeof path - at;
	put_u32(head, (uint32_t)(sizeof head + size));
	put_u32(head + 4, type);
	put_u32(head + 8, cookie);
	put_u16(head + 12, (uint16_t)size);
	return record_stream_put(head, sizeof head) && record_stream_put(path + at, size);
}

static uint32_t find_watch(int watch)
{
	for (uint32_t node = 0; node < nodes_end; node++)
		if (watches[node] == watch)
			return node;
	return NONE;
}

/* Opens the directory of a node; -1 when it is not there any more. */
static int open_node(uint32_t node)
{
	if (node == ROOT)
		return fcntl(root, F_DUPFD_CLOEXEC, 0);
	int parent = open_node(nodes[node].parent);
	int fd = parent < 0 ? -1 : openat(parent, nodes[node].name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (parent >= 0)
		close(parent);
	return fd;
}

static bool is_below(uint32_t node, uint32_t top)
{
	while (node != NONE && node != top)
		node = nodes[node].parent;
	return node == top;
}

/* Watches the directory of a descriptor. Returns its node, or NONE when it cannot be watched. */
static uint32_t add(int fd, uint32_t parent, const char *name)
{
	int watch = inotify_add_watch(notifier, place_name(fd), MASK);
	if (watch < 0) {
		full |= errno == ENOSPC || errno == ENOMEM;
		return NONE;
	}
	uint32_t node = find_watch(watch);
	/* Watched already: it was moved, and the event of its old name is still to come. */
	if (node == NONE)
		node = find_watch(0);
	if (node == NONE && nodes_end < FILE_WATCHES_COUNT_MAX)
		node = nodes_end++;
	if (node == NONE) {
		full = true;
		inotify_rm_watch(notifier, watch);
		return NONE;
	}
	/* What was seen can be of different times; a node must not become its own parent. Few file systems have longer names. */
	if (is_below(parent, node) || strlen(name) > NAME_MAX)
		return NONE;
	watches[node] = watch;
	nodes[node].parent = parent;
	strcpy(nodes[node].name, name);
	return node;
}

/* Watches the directories below a node, and reports their entries if these are new. */
static bool grow(uint32_t first, bool reports)
{
	static uint32_t queue[FILE_WATCHES_COUNT_MAX];
	static struct listing listing;
	unsigned count = 0;
	if (first != NONE)
		queue[count++] = first;
	for (unsigned at = 0; at < count; at++) {
		const char *name;
		int fd = open_node(queue[at]);
		int entries = fd < 0 ? -1 : place_reopen(fd, O_RDONLY | O_DIRECTORY);
		listing_begin(&listing);
		while (entries >= 0 && (name = listing_next(&listing, entries)) != NULL) {
			if (reports && !send_event(queue[at], name, FILE_EVENT_CREATE, 0))
				return false;
			int below = openat(entries, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			uint32_t node = below < 0 ? NONE : add(below, queue[at], name);
			if (node != NONE && count < FILE_WATCHES_COUNT_MAX)
				queue[count++] = node;
			if (below >= 0)
				close(below);
		}
		if (entries >= 0)
			close(entries);
		if (fd >= 0)
			close(fd);
	}
	return true;
}

/* Watches a new directory, and what is below. */
static bool add_tree(uint32_t parent, const char *name, bool reports)
{
	int above = open_node(parent);
	int fd = above < 0 ? -1 : openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	uint32_t node = fd < 0 ? NONE : add(fd, parent, name);
	if (above >= 0)
		close(above);
	if (fd >= 0)
		close(fd);
	return grow(node, reports);
}

/* Forgets the nodes below `top`, and `top` itself unless it is the root. */
static void drop_tree(uint32_t top)
{
	static bool drops[FILE_WATCHES_COUNT_MAX];
	for (uint32_t node = 0; node < nodes_end; node++)
		drops[node] = node != ROOT && watches[node] != 0 && is_below(node, top);
	for (uint32_t node = 0; node < nodes_end; node++) {
		if (!drops[node])
			continue;
		inotify_rm_watch(notifier, watches[node]);
		watches[node] = 0;
	}
}

static void drop_entry(uint32_t parent, const char *name)
{
	for (uint32_t node = 1; node < nodes_end; node++)
		if (watches[node] != 0 && nodes[node].parent == parent && strcmp(nodes[node].name, name) == 0)
			drop_tree(node);
}

/* Handles one event. Returns false when the host reads no more. */
static bool take(const struct inotify_event *event)
{
	static const struct {
		uint32_t bit;
		uint32_t type;
	} types[] = {
		{IN_CREATE, FILE_EVENT_CREATE}, {IN_MODIFY, FILE_EVENT_WRITE}, {IN_DELETE, FILE_EVENT_REMOVE},
		{IN_MOVED_FROM, FILE_EVENT_RENAME_FROM}, {IN_MOVED_TO, FILE_EVENT_RENAME_TO}, {IN_ATTRIB, FILE_EVENT_CHMOD},
	};
	bool done = true;
	if ((event->mask & IN_Q_OVERFLOW) != 0) {
		/* Directories may have come and gone unseen. */
		drop_tree(ROOT);
		return send_event(ROOT, "", FILE_EVENT_OVERFLOW, 0) && (!recursive || grow(ROOT, false));
	}
	uint32_t node = find_watch(event->wd);
	if (node == NONE)
		return true;
	if ((event->mask & IN_IGNORED) != 0)
		drop_tree(node);
	const char *name = event->len > 0 ? event->name : "";
	/* A directory's own events are also its parent's. */
	if (name[0] == '\0' && node != ROOT)
		return true;
	for (size_t i = 0; i < sizeof types / sizeof types[0] && done; i++)
		if ((event->mask & types[i].bit) != 0)
			done = send_event(node, name, types[i].type, event->cookie);
	if (!done || !recursive || (event->mask & IN_ISDIR) == 0)
		return done;
	if ((event->mask & IN_MOVED_FROM) != 0)
		drop_entry(node, name);
	if ((event->mask & (IN_CREATE | IN_MOVED_TO)) != 0)
		done = add_tree(node, name, (event->mask & IN_CREATE) != 0);
	return done;
}

/* A descriptor that is readable when the host asked for a record after all that happened so far; -1 on failure. */
static int open_asked(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, WATCH_SYNC_SIGNAL);
	return sigprocmask(SIG_BLOCK, &set, NULL) == 0 ? signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK) : -1;
}

/* Sends the events that the kernel has queued, and no later ones: a storm must not hold the record of a sync back. */
static bool take_queued(void)
{
	static uint8_t events[65536] __attribute__((aligned(__alignof__(struct inotify_event))));
	int queued = 0;
	if (ioctl(notifier, FIONREAD, &queued) != 0)
		return true;
	while (queued > 0) {
		ssize_t size = read(notifier, events, sizeof events);
		if (size <= 0)
			break;
		queued -= (int)size;
		for (ssize_t at = 0; at < size;) {
			const struct inotify_event *event = (const void *)(events + at);
			if (!take(event))
				return false;
			at += (ssize_t)(sizeof *event + event->len);
		}
	}
	if (full && !send_event(ROOT, "", FILE_EVENT_OVERFLOW, 0))
		return false;
	full = false;
	return true;
}

/* Sends events until the directory is gone or the host reads no more. */
static bool follow(int asked)
{
	struct pollfd ready[] = {{.fd = notifier, .events = POLLIN}, {.fd = asked, .events = POLLIN}};
	struct signalfd_siginfo signal;
	struct stat status;
	for (;;) {
		if (!record_stream_flush())
			return false;
		poll(ready, 2, GONE_MS);
		bool synced = read(asked, &signal, sizeof signal) == (ssize_t)sizeof signal;
		if (!take_queued() || (synced && !send_event(ROOT, "", FILE_EVENT_SYNCED, 0)))
			return false;
		if (fstatat(root, "", &status, AT_EMPTY_PATH) != 0 || status.st_nlink == 0)
			return send_event(ROOT, "", FILE_EVENT_GONE, 0);
	}
}

bool watch_run(struct request *request, uint64_t *count, struct problem *problem)
{
	struct place place;
	*count = 0;
	recursive = (request->flags & FILE_FLAG_RECURSIVE) != 0;
	if (!place_open(request->path, (request->flags & FILE_FLAG_FOLLOW) != 0, &place, problem))
		return false;
	if (!S_ISDIR(place.status.st_mode))
		return problem_set(problem, ENOTDIR, "%.300s", request->path);
	root = place.fd;
	notifier = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	int asked = notifier < 0 ? -1 : open_asked();
	int watch = asked < 0 ? -1 : inotify_add_watch(notifier, place_name(root), MASK);
	if (watch < 0)
		return problem_set(problem, errno, "watch of %.300s", request->path);
	nodes[ROOT].parent = NONE;
	watches[ROOT] = watch;
	nodes_end = 1;
	if (recursive && grow(ROOT, false) && full)
		return problem_set(problem, ENOSPC, "more than %d directories", FILE_WATCHES_COUNT_MAX);
	return (send_event(ROOT, "", FILE_EVENT_READY, 0) && follow(asked)) ||
	       problem_set(problem, errno, "stream of the visitor");
}
