/* Parses the command line: "vm", "tool" or "gate", options, program. Nothing has a default. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"
#include "options.h"

enum option_id {
	OPTION_CGROUP = 1,
	OPTION_ROOT,
	OPTION_VM,
	OPTION_EXECUTABLE,
	OPTION_UID,
	OPTION_GID,
	OPTION_GROUP,
	OPTION_DEVICE,
	OPTION_NOFILE,
	OPTION_FSIZE,
	OPTION_NPROC,
	OPTION_MEMLOCK,
	OPTION_OOM_SCORE_ADJ,
	OPTION_PARENT,
	OPTION_KEEP_FD,
	OPTION_VARIABLE,
	OPTION_WRITABLE,
	OPTION_READABLE,
	OPTION_DIRECTORY,
	OPTION_NETWORK,
	OPTION_CAPABILITIES,
	OPTION_AS,
	OPTION_ATTRIBUTES,
	OPTION_IO_URING,
	OPTION_REPORT,
	OPTION_LEASE,
	OPTION_END,
};

/* Options that may be omitted or repeated. */
static const bool optional[OPTION_END] = {
	[OPTION_CGROUP] = true,	  [OPTION_GROUP] = true,    [OPTION_DEVICE] = true,  [OPTION_KEEP_FD] = true,
	[OPTION_WRITABLE] = true, [OPTION_READABLE] = true, [OPTION_NETWORK] = true,
	[OPTION_ATTRIBUTES] = true, [OPTION_IO_URING] = true,
	[OPTION_VARIABLE] = true, [OPTION_REPORT] = true, [OPTION_LEASE] = true,
};

/* clang-format off */
#define COMMON_OPTIONS \
	{ "cgroup", required_argument, NULL, OPTION_CGROUP }, \
	{ "nofile", required_argument, NULL, OPTION_NOFILE }, \
	{ "fsize", required_argument, NULL, OPTION_FSIZE }, \
	{ "oom-score-adj", required_argument, NULL, OPTION_OOM_SCORE_ADJ }, \
	{ "parent", required_argument, NULL, OPTION_PARENT }
/* clang-format on */

static const struct option vm_options[] = {
	COMMON_OPTIONS,
	{ "root", required_argument, NULL, OPTION_ROOT },
	{ "vm", required_argument, NULL, OPTION_VM },
	{ "uid", required_argument, NULL, OPTION_UID },
	{ "gid", required_argument, NULL, OPTION_GID },
	{ "group", required_argument, NULL, OPTION_GROUP },
	{ "device", required_argument, NULL, OPTION_DEVICE },
	{ "nproc", required_argument, NULL, OPTION_NPROC },
	{ "memlock", required_argument, NULL, OPTION_MEMLOCK },
	{ "keep-fd", required_argument, NULL, OPTION_KEEP_FD },
	{ "io-uring", no_argument, NULL, OPTION_IO_URING },
	{ "variable", required_argument, NULL, OPTION_VARIABLE },
	{ "report", required_argument, NULL, OPTION_REPORT },
	{ "lease", required_argument, NULL, OPTION_LEASE },
	{ NULL, 0, NULL, 0 },
};

static const struct option tool_options[] = {
	COMMON_OPTIONS,
	{ "writable", required_argument, NULL, OPTION_WRITABLE },
	{ "readable", required_argument, NULL, OPTION_READABLE },
	{ "directory", required_argument, NULL, OPTION_DIRECTORY },
	{ "network", required_argument, NULL, OPTION_NETWORK },
	{ "capabilities", required_argument, NULL, OPTION_CAPABILITIES },
	{ "attributes", no_argument, NULL, OPTION_ATTRIBUTES },
	{ "as", required_argument, NULL, OPTION_AS },
	{ NULL, 0, NULL, 0 },
};

static const struct option gate_options[] = {
	COMMON_OPTIONS,
	{ "root", required_argument, NULL, OPTION_ROOT },
	{ "executable", required_argument, NULL, OPTION_EXECUTABLE },
	{ "readable", required_argument, NULL, OPTION_READABLE },
	{ "uid", required_argument, NULL, OPTION_UID },
	{ "gid", required_argument, NULL, OPTION_GID },
	{ "nproc", required_argument, NULL, OPTION_NPROC },
	{ "memlock", required_argument, NULL, OPTION_MEMLOCK },
	{ "keep-fd", required_argument, NULL, OPTION_KEEP_FD },
	{ "variable", required_argument, NULL, OPTION_VARIABLE },
	{ NULL, 0, NULL, 0 },
};

static _Noreturn void invalid(const char *what)
{
	errno = EINVAL;
	fail("option", what);
}

/* Parses decimal digits only: no sign, no space, no other base. */
static unsigned long long number(const char *text, unsigned long long max, const char *what)
{
	unsigned long long value;
	char *end;

	if (text[0] < '0' || text[0] > '9')
		invalid(what);
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno != 0 || *end != '\0' || value > max)
		invalid(what);
	return value;
}

static const char *absolute(const char *path, const char *what)
{
	if (path[0] != '/')
		invalid(what);
	return path;
}

static void add_path(const char **list, size_t *count, size_t count_max, const char *path, const char *what)
{
	if (*count == count_max)
		invalid(what);
	list[(*count)++] = absolute(path, what);
}

/* The number of a descriptor that the launcher was given. */
static int descriptor(const char *text, const char *what)
{
	int fd = (int)number(text, INT_MAX, what);

	if (fd <= STDERR_FILENO)
		invalid(what);
	return fd;
}

static void add_keep(struct options *options, const char *text)
{
	int fd = descriptor(text, "keep-fd");

	if (options->keep_count == KEEP_COUNT_MAX)
		invalid("keep-fd");
	if (options->keep_count > 0 && options->keep[options->keep_count - 1] >= fd)
		invalid("keep-fd (must ascend)");
	options->keep[options->keep_count++] = fd;
}

static void add_variable(struct options *options, char *text)
{
	if (options->variable_count == VARIABLES_COUNT_MAX || strchr(text, '=') == NULL)
		invalid("variable");
	options->variables[options->variable_count++] = text;
}

static void take(struct options *options, int option, char *value)
{
	switch (option) {
	case OPTION_CGROUP:
		add_path(options->cgroups, &options->cgroup_count, CGROUPS_COUNT_MAX, value, "cgroup");
		break;
	case OPTION_ROOT:
		options->root = absolute(value, "root");
		break;
	case OPTION_VM:
		options->vm = absolute(value, "vm");
		break;
	case OPTION_EXECUTABLE:
		options->executable = absolute(value, "executable");
		break;
	case OPTION_UID:
		options->uid = (uid_t)number(value, UINT_MAX - 1, "uid");
		break;
	case OPTION_GID:
		options->gid = (gid_t)number(value, UINT_MAX - 1, "gid");
		break;
	case OPTION_GROUP:
		if (options->group_count == GROUPS_COUNT_MAX)
			invalid("group");
		options->groups[options->group_count++] = (gid_t)number(value, UINT_MAX - 1, "group");
		break;
	case OPTION_DEVICE:
		add_path(options->devices, &options->device_count, DEVICES_COUNT_MAX, value, "device");
		break;
	case OPTION_NOFILE:
		options->nofile = (rlim_t)number(value, 65536, "nofile");
		break;
	case OPTION_FSIZE:
		options->fsize = (rlim_t)number(value, LLONG_MAX, "fsize");
		break;
	case OPTION_NPROC:
		options->nproc = (rlim_t)number(value, 65536, "nproc");
		break;
	case OPTION_MEMLOCK:
		options->memlock = (rlim_t)number(value, LLONG_MAX, "memlock");
		break;
	case OPTION_OOM_SCORE_ADJ:
		number(value, 1000, "oom-score-adj");
		options->oom_score_adj = value;
		break;
	case OPTION_PARENT:
		options->parent = (pid_t)number(value, INT_MAX, "parent");
		break;
	case OPTION_KEEP_FD:
		add_keep(options, value);
		break;
	case OPTION_VARIABLE:
		add_variable(options, value);
		break;
	case OPTION_WRITABLE:
		add_path(options->writable, &options->writable_count, DIRECTORIES_COUNT_MAX, value, "writable");
		break;
	case OPTION_READABLE:
		add_path(options->readable, &options->readable_count, DIRECTORIES_COUNT_MAX, value, "readable");
		break;
	case OPTION_DIRECTORY:
		options->directory = absolute(value, "directory");
		break;
	case OPTION_NETWORK:
		options->network = absolute(value, "network");
		break;
	case OPTION_CAPABILITIES:
		options->capabilities = (uint64_t)number(value, LLONG_MAX, "capabilities");
		break;
	case OPTION_ATTRIBUTES:
		options->attributes = true;
		break;
	case OPTION_IO_URING:
		options->io_uring = true;
		break;
	case OPTION_REPORT:
		options->report = descriptor(value, "report");
		break;
	case OPTION_LEASE:
		options->lease = descriptor(value, "lease");
		break;
	case OPTION_AS:
		options->address_space = (rlim_t)number(value, LLONG_MAX, "as");
		break;
	default:
		invalid("unknown");
	}
}

static const struct option *options_of(enum mode mode)
{
	switch (mode) {
	case MODE_VM:
		return vm_options;
	case MODE_TOOL:
		return tool_options;
	case MODE_GATE:
		return gate_options;
	}
	abort();
}

static enum mode mode_of(const char *name)
{
	if (name != NULL && strcmp(name, "vm") == 0)
		return MODE_VM;
	if (name != NULL && strcmp(name, "tool") == 0)
		return MODE_TOOL;
	if (name != NULL && strcmp(name, "gate") == 0)
		return MODE_GATE;
	invalid("vm, tool or gate");
}

void parse_options(struct options *options, int argc, char **argv)
{
	bool seen[OPTION_END] = { false };
	const struct option *known;
	int option;

	options->mode = mode_of(argc < 2 ? NULL : argv[1]);
	known = options_of(options->mode);
	options->report = options->lease = -1;
	opterr = 0;
	optind = 2;
	while ((option = getopt_long(argc, argv, "+", known, NULL)) != -1) {
		take(options, option, optarg);
		seen[option] = true;
	}
	for (const struct option *each = known; each->name != NULL; each++) {
		if (!optional[each->val] && !seen[each->val])
			invalid(each->name);
	}
	/* uid 0 keeps too many rights, even in namespaces. */
	if (options->mode != MODE_TOOL && (options->uid == 0 || options->gid == 0))
		invalid("uid or gid 0");
	/* A tool is searched for in PATH, in its new root. */
	if (optind >= argc || (options->mode != MODE_TOOL && argv[optind][0] != '/'))
		invalid("program");
	options->program = &argv[optind];
}
