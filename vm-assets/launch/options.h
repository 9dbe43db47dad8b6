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
#define DIRECTORIES_COUNT_MAX 24
#define VARIABLES_COUNT_MAX 16

enum mode {
	/* a virtual machine monitor, under a user of its own without privileges */
	MODE_VM,
	/* a program that reads untrusted files, as root with some capabilities */
	MODE_TOOL,
	/* a program that connects to the outside, under a user of its own without privileges, in the host's network */
	MODE_GATE,
};

/* The parsed command line. Strings point into argv. */
struct options {
	enum mode mode;
	const char *cgroups[CGROUPS_COUNT_MAX];
	size_t cgroup_count;
	rlim_t nofile;
	rlim_t fsize;
	const char *oom_score_adj;
	/* pid of the process that started the launcher; the launcher dies with it, unless it is untied by the lease */
	pid_t parent;
	char **program;

	/* MODE_GATE: host path of the executable, which the program sees as /program */
	const char *executable;

	/* MODE_VM, MODE_GATE: the program's root, which it sees read-only as /; a gate's is an empty directory */
	const char *root;
	/* MODE_VM: the VM's private directory, which the program sees as /vm */
	const char *vm;
	uid_t uid;
	gid_t gid;
	gid_t groups[GROUPS_COUNT_MAX];
	size_t group_count;
	/* host device nodes to create in /dev, owned by uid */
	const char *devices[DEVICES_COUNT_MAX];
	size_t device_count;
	rlim_t nproc;
	rlim_t memlock;
	/* groups of system calls that only some monitors need */
	bool io_uring;
	/* descriptors above 2 that the program inherits, ascending */
	int keep[KEEP_COUNT_MAX];
	size_t keep_count;
	/* descriptors of the launcher alone, or -1: the file for the report, and a socket of the parent (report.h) */
	int report;
	int lease;
	/* the whole environment of the program, terminated by NULL */
	char *variables[VARIABLES_COUNT_MAX + 1];
	size_t variable_count;

	/* MODE_TOOL: directories that the program sees at their host paths */
	const char *writable[DIRECTORIES_COUNT_MAX];
	size_t writable_count;
	/* also of MODE_GATE, where they may be files */
	const char *readable[DIRECTORIES_COUNT_MAX];
	size_t readable_count;
	/* the program's working directory, as it sees it */
	const char *directory;
	/* file of the network namespace to join; NULL for a new, empty one */
	const char *network;
	/* bit mask of the capabilities that the program keeps */
	uint64_t capabilities;
	/* whether the launcher sets attributes that take CAP_SYS_ADMIN; see attributes.h */
	bool attributes;
	rlim_t address_space;
};

/* Exits with 125 when the command line is incomplete or invalid. */
void parse_options(struct options *options, int argc, char **argv);

#endif
