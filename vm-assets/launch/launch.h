#ifndef COPPICE_LAUNCH_H
#define COPPICE_LAUNCH_H

#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

#define PATH_BYTES_MAX 4096
#define CGROUPS_COUNT_MAX 16
#define DEVICES_COUNT_MAX 8
#define GROUPS_COUNT_MAX 8
#define KEEP_COUNT_MAX 16

/* What the command line says; strings point into argv. */
struct options {
	const char *cgroups[CGROUPS_COUNT_MAX];
	size_t cgroup_count;
	/* prepared root of the program, seen read-only as / */
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
	rlim_t nofile;
	rlim_t fsize;
	rlim_t nproc;
	rlim_t memlock;
	const char *oom_score_adj;
	/* pid of the process that starts us; we end when it does */
	pid_t parent;
	/* descriptors above 2 that the program gets, ascending */
	int keep[KEEP_COUNT_MAX];
	size_t keep_count;
	char **program;
};

/* Exits 125 with the text of errno. */
_Noreturn void fail(const char *step, const char *subject);
void write_text(const char *path, const char *text);

/* options.c: exits 125 when the command line is not complete and valid. */
void parse_options(struct options *options, int argc, char **argv);

/* jail.c: namespaces and the new root. */
void enter_jail(const struct options *options);

/* privileges.c */
void set_limits(const struct options *options);
void drop_privileges(const struct options *options);
/* Closes everything but 0, 1, 2 and `keep`, which is ascending. */
void close_descriptors(const int *keep, size_t keep_count);

#endif
