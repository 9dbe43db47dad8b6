/*
 * The guest's cgroups: cmd has the limits of all commands, cmd/N contains one command with all processes it forks, cmd/left
 * what lingering commands left behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "../budget.h"
#include "../log.h"
#include "../platform.h"
#include "guest.h"

#define COMMANDS CGROUP_ROOT "/cmd"
/* Visitors: what they use is limited with the commands. */
#define VISITORS COMMANDS "/files"
#define LEFT COMMANDS "/left"
/*
 * Generous memory cost of a process beyond what its cgroup is charged for. The upper limit of processes is what an
 * emulated machine can kill within the seconds that the host allows after a time limit.
 */
#define PROCESS_BYTES (256ULL << 10)
#define GUEST_PROCESSES_COUNT_MIN 1024ULL
#define GUEST_PROCESSES_COUNT_MAX 4096ULL
/* Processes and threads that are kept for commands, whatever was left behind. */
#define KEPT_PROCESSES_COUNT 256ULL
/* Depth of the cgroup of a command and those that it makes in it, so that all can be removed. */
#define NESTING_MAX 16U
/* The pids of all processes that commands can have. */
#define LIST_BYTES (8 * GUEST_PROCESSES_COUNT_MAX + 1)
/* Lists that the moves out of a cgroup read. */
#define LISTS_MAX 4

static char memory_max[24];
static uint64_t left_count_max;

static void set(const char *path, const char *value)
{
	if (!write_file(path, value))
		log_fatal("%s: %s", path, strerror(errno));
}

void cgroup_open(void)
{
	struct sysinfo info;
	char count[24];
	if (sysinfo(&info) != 0)
		log_fatal("sysinfo: %s", strerror(errno));
	uint64_t total = (uint64_t)info.totalram * info.mem_unit;
	uint64_t limit = total > 2ULL * RESERVE_BYTES ? total - RESERVE_BYTES : total / 2;
	uint64_t processes = total / PROCESS_BYTES;
	if (processes < GUEST_PROCESSES_COUNT_MIN)
		processes = GUEST_PROCESSES_COUNT_MIN;
	if (processes > GUEST_PROCESSES_COUNT_MAX)
		processes = GUEST_PROCESSES_COUNT_MAX;
	snprintf(memory_max, sizeof memory_max, "%llu", (unsigned long long)limit);
	snprintf(count, sizeof count, "%llu", (unsigned long long)processes);
	set(CGROUP_ROOT "/cgroup.subtree_control", "+cpu +memory +pids");
	if (mkdir(COMMANDS, 0755) != 0)
		log_fatal("%s: %s", COMMANDS, strerror(errno));
	set(COMMANDS "/memory.max", memory_max);
	set(COMMANDS "/pids.max", count);
	snprintf(count, sizeof count, "%u", NESTING_MAX);
	set(COMMANDS "/cgroup.max.depth", count);
	set(COMMANDS "/cgroup.subtree_control", "+cpu +memory +pids");
	if (mkdir(VISITORS, 0755) != 0 || mkdir(LEFT, 0755) != 0)
		log_fatal("%s: %s", COMMANDS, strerror(errno));
	left_count_max = processes - KEPT_PROCESSES_COUNT;
	snprintf(count, sizeof count, "%llu", (unsigned long long)left_count_max);
	set(LEFT "/memory.max", memory_max);
	set(LEFT "/pids.max", count);
	/* A kernel without swap does not have this file. */
	write_file(COMMANDS "/memory.swap.max", "0");
}

static void path_of(unsigned slot, const char *file, char path[64])
{
	snprintf(path, 64, COMMANDS "/%u/%s", slot, file);
}

/* Forks into a cgroup, and into new namespaces of `flags`. Returns 0 in the child, and -1 with a problem on failure. */
static pid_t fork_into(const char *path, uint64_t flags, struct problem *problem)
{
	int cgroup = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct clone_args arguments = {
		.flags = CLONE_INTO_CGROUP | flags,
		.exit_signal = SIGCHLD,
		.cgroup = (unsigned)cgroup,
	};
	pid_t pid = cgroup < 0 ? -1 : (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
	if (pid < 0)
		problem_set(problem, errno, "process in %s", path);
	/* The child closes everything above the standard streams soon. */
	if (pid != 0 && cgroup >= 0)
		close(cgroup);
	return pid;
}

pid_t platform_fork_reaper(unsigned slot, bool isolated, struct problem *problem)
{
	char path[64];
	char limit[64];
	path_of(slot, "", path);
	/* The parent enforces the limit. It is also set here for programs that read it to size themselves. */
	path_of(slot, "memory.max", limit);
	if ((mkdir(path, 0755) != 0 && errno != EEXIST) || !write_file(limit, memory_max)) {
		problem_set(problem, errno, "cgroup of the command");
		return -1;
	}
	return fork_into(path, isolated ? CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS : 0, problem);
}

pid_t platform_fork_visitor(struct problem *problem)
{
	return fork_into(VISITORS, 0, problem);
}

void platform_kill(unsigned slot, pid_t reaper, pid_t command)
{
	char path[64];
	(void)command;
	path_of(slot, "cgroup.kill", path);
	/* Killing the first process of a pid namespace ends all of it, including processes outside the cgroup. */
	if (!write_file(path, "1"))
		log_line("%s: %s", path, strerror(errno));
	kill(reaper, SIGKILL);
}

static uint64_t field(const char *text, const char *name)
{
	size_t length = strlen(name);
	for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
		if (*line == '\n')
			line++;
		if (strncmp(line, name, length) == 0 && line[length] == ' ')
			return strtoull(line + length + 1, NULL, 10);
	}
	return 0;
}

bool platform_is_empty(unsigned slot)
{
	char path[64];
	char text[256];
	path_of(slot, "cgroup.events", path);
	return read_file(path, text, sizeof text) <= 0 || field(text, "populated") == 0;
}

static void read_usage(unsigned slot, struct usage *usage)
{
	char path[64];
	char text[4096];
	path_of(slot, "cpu.stat", path);
	if (read_file(path, text, sizeof text) > 0) {
		usage->cpu_us = field(text, "usage_usec");
		usage->user_us = field(text, "user_usec");
		usage->system_us = field(text, "system_usec");
	}
	path_of(slot, "memory.peak", path);
	if (read_file(path, text, sizeof text) > 0)
		usage->peak_bytes = strtoull(text, NULL, 10);
	path_of(slot, "memory.events", path);
	if (read_file(path, text, sizeof text) > 0)
		usage->oom_killed = field(text, "oom_kill") > 0;
}

struct moves {
	int to; /* cgroup.procs of the cgroup for what is left */
	pid_t except;
	uint64_t room; /* number of further processes that may be left */
	bool stuck; /* one was not moved */
};

/* Moves the processes of one cgroup. Returns true when it moved any. */
static bool move_listed(int cgroup, struct moves *moves)
{
	static char text[LIST_BYTES];
	size_t size = 0;
	ssize_t count = -1;
	int from = openat(cgroup, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	while (from >= 0 && (count = read(from, text + size, sizeof text - 1 - size)) > 0)
		size += (size_t)count;
	if (from >= 0)
		close(from);
	moves->stuck |= count < 0;
	text[size] = '\0';
	bool moved = false;
	for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		if (strtol(line, NULL, 10) == moves->except)
			continue;
		bool done = moves->room > 0 && write(moves->to, line, (size_t)(end - line)) > 0;
		moved |= done;
		moves->stuck |= !done && (moves->room == 0 || errno != ESRCH);
		moves->room -= done;
	}
	return moved;
}

/* Moves the processes of a cgroup as move_listed does, and those of the cgroups that the command made in it. */
static void move_tree(int parent, const char *name, unsigned depth, struct moves *moves)
{
	int fd = depth == 0 ? -1 : openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);
	moves->stuck |= entries == NULL;
	if (entries == NULL && fd >= 0)
		close(fd);
	/* A fork that was under way at the freeze ends before the first move. So the second list has its process. */
	for (int lists = 0; entries != NULL && lists < LISTS_MAX && move_listed(fd, moves); lists++)
		;
	for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;)
		if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
			move_tree(fd, entry->d_name, depth - 1, moves);
	if (entries != NULL)
		closedir(entries);
}

/* The number in a file; the largest one when it cannot be read. */
static uint64_t count_of(const char *path)
{
	char text[24];
	return read_file(path, text, sizeof text) > 0 ? strtoull(text, NULL, 10) : UINT64_MAX;
}

/* Moves what is in the cgroup of a session, except the reaper, to the cgroup of what was left. Returns true when it moved all. */
static bool move_rest(unsigned slot, pid_t reaper)
{
	char path[64];
	path_of(slot, "pids.current", path);
	/* Mostly, nothing but the reaper is there. */
	if (count_of(path) <= 1)
		return true;
	uint64_t left_count = count_of(LEFT "/pids.current");
	struct moves moves = {
		.to = open(LEFT "/cgroup.procs", O_WRONLY | O_CLOEXEC),
		.except = reaper,
		.room = left_count < left_count_max ? left_count_max - left_count : 0,
	};
	path_of(slot, "cgroup.freeze", path);
	/* Frozen processes cannot fork. Each continues when it is moved. */
	moves.stuck = moves.to < 0 || !write_file(path, "1");
	path_of(slot, "", path);
	move_tree(AT_FDCWD, path, NESTING_MAX, &moves);
	close(moves.to);
	return !moves.stuck;
}

void platform_leave(unsigned slot, pid_t reaper)
{
	/* A process whose first thread has ended is also in the cgroup that it left, and a kill of that would end it. */
	if (move_rest(slot, reaper))
		kill(reaper, SIGKILL);
	else
		platform_kill(slot, reaper, 0);
}

/* Removes a cgroup and the cgroups that the command made in it. */
static void remove_tree(int parent, const char *name, unsigned depth)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *entries = fd < 0 ? NULL : fdopendir(fd);
	if (entries == NULL && fd >= 0)
		close(fd);
	for (struct dirent *entry; entries != NULL && depth > 0 && (entry = readdir(entries)) != NULL;)
		if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
			remove_tree(fd, entry->d_name, depth - 1);
	if (entries != NULL)
		closedir(entries);
	if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
		log_line("cgroup %s: %s", name, strerror(errno));
}

void platform_release(unsigned slot, struct usage *usage)
{
	char name[8];
	read_usage(slot, usage);
	snprintf(name, sizeof name, "%u", slot);
	int fd = open(COMMANDS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	remove_tree(fd, name, NESTING_MAX);
	close(fd);
}
