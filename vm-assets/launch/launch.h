#ifndef COPPICE_LAUNCH_H
#define COPPICE_LAUNCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#define PATH_BYTES_MAX 4096
#define CGROUPS_COUNT_MAX 16
#define DEVICES_COUNT_MAX 8
#define GROUPS_COUNT_MAX 8
#define KEEP_COUNT_MAX 16
#define DIRECTORIES_COUNT_MAX 8

enum mode {
	/* a virtual machine monitor: a user of its own, without any privilege */
	MODE_VM,
	/* a program that reads what strangers made: root's files, some of root's privileges */
	MODE_TOOL,
};

/* What the command line says; strings point into argv. */
struct options {
	enum mode mode;
	const char *cgroups[CGROUPS_COUNT_MAX];
	size_t cgroup_count;
	rlim_t nofile;
	rlim_t fsize;
	const char *oom_score_adj;
	/* pid of the process that starts us; we end when it does */
	pid_t parent;
	char **program;

	/* MODE_VM: prepared root of the program, seen read-only as / */
	const char *root;
	/* the VM's private directory, seen as /vm */
	const char *vm;
	uid_t uid;
	gid_t gid;
	gid_t groups[GROUPS_COUNT_MAX];
	size_t group_count;
	/* host device nodes to be made below /dev, owned by uid */
	const char *devices[DEVICES_COUNT_MAX];
	size_t device_count;
	rlim_t nproc;
	rlim_t memlock;
	/* descriptors above 2 that the program gets, ascending */
	int keep[KEEP_COUNT_MAX];
	size_t keep_count;

	/* MODE_TOOL: directories that it sees by their own names */
	const char *writable[DIRECTORIES_COUNT_MAX];
	size_t writable_count;
	const char *readable[DIRECTORIES_COUNT_MAX];
	size_t readable_count;
	/* where it starts, by its name there */
	const char *directory;
	/* file of the network namespace that it runs in; NULL for one of its own, with nothing in it */
	const char *network;
	/* a bit for each that it keeps */
	uint64_t capabilities;
	rlim_t address_space;
};

/* Exits 125 with the text of errno. */
_Noreturn void fail(const char *step, const char *subject);
void write_text(const char *path, const char *text);

/* options.c: exits 125 when the command line is not complete and valid. */
void parse_options(struct options *options, int argc, char **argv);

/* vm_root.c, tool_root.c: namespaces and the new root. */
void enter_vm_root(const struct options *options);
void enter_tool_root(const struct options *options);

/* mounts.c */
/* Writes "directory/name" to `path`, of PATH_BYTES_MAX bytes. */
void below(char *path, const char *directory, const char *name);
void bind_with(const char *source, const char *target, unsigned long flags);
/* A /dev below `root` with the nodes that every program wants, and with the VM's own; it can be changed until sealed. */
void mount_devices(const char *root, const struct options *options);
void seal_devices(const char *root);
/* A name space that the service's unit may forbid. Returns whether it is a new one. */
int unshare_if_allowed(int flag, const char *name);
/* Nothing that is mounted from here on is seen by the host. */
void make_mounts_private(void);
/* Makes `root` the root of this process, and leaves the old one. */
void pivot_into(const char *root);

/* privileges.c */
void set_limits(const struct options *options);
/* Gives up everything but `capabilities`. */
void drop_privileges(const struct options *options, uint64_t capabilities);
/* Closes everything but 0, 1, 2 and `keep`, which is ascending. */
void close_descriptors(const int *keep, size_t keep_count);

#endif
