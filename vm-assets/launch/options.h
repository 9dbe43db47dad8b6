#ifndef COPPICE_LAUNCH_OPTIONS_H
#define COPPICE_LAUNCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#define CGROUPS_COUNT_MAX 16
#define DEVICES_COUNT_MAX 8
#define GROUPS_COUNT_MAX 8
#define KEEP_COUNT_MAX 16
#define DIRECTORIES_COUNT_MAX 8
#define VARIABLES_COUNT_MAX 4

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
	/* two families of calls that only some monitors need */
	bool io_uring;
	bool userfaultfd;
	/* descriptors above 2 that the program gets, ascending */
	int keep[KEEP_COUNT_MAX];
	size_t keep_count;
	/* the whole environment of the program, NULL at its end */
	char *variables[VARIABLES_COUNT_MAX + 1];
	size_t variable_count;

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
	/* whether attributes that take CAP_SYS_ADMIN are set for it: see attributes.h */
	bool attributes;
	rlim_t address_space;
};

/* Exits 125 when the command line is not complete and valid. */
void parse_options(struct options *options, int argc, char **argv);

#endif
