/* Limits and privileges of the program. */
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fail.h"
#include "privileges.h"

static void limit(int resource, rlim_t value, const char *name)
{
	struct rlimit both = { .rlim_cur = value, .rlim_max = value };

	if (setrlimit(resource, &both) != 0)
		fail("rlimit", name);
}

void set_limits(const struct options *options)
{
	limit(RLIMIT_NOFILE, options->nofile, "nofile");
	limit(RLIMIT_FSIZE, options->fsize, "fsize");
	limit(RLIMIT_CORE, 0, "core");
	if (options->mode == MODE_TOOL) {
		limit(RLIMIT_AS, options->address_space, "as");
		return;
	}
	limit(RLIMIT_NPROC, options->nproc, "nproc");
	limit(RLIMIT_MEMLOCK, options->memlock, "memlock");
}

static void keep_capabilities(uint64_t kept)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3, .pid = 0 };
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { { 0, 0, 0 }, { 0, 0, 0 } };

	for (size_t i = 0; i < _LINUX_CAPABILITY_U32S_3; i++)
		data[i].permitted = data[i].effective = (uint32_t)(kept >> (32 * i));
	if (syscall(SYS_capset, &header, data) != 0)
		fail("capset", "");
}

static void keep_bounding_set(uint64_t kept)
{
	/* The kernel returns EINVAL after its last capability. */
	for (unsigned long capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++) {
		if (capability < 64 && (kept >> capability & 1) != 0)
			continue;
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0)
			fail("bounding set", "");
	}
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0)
		fail("ambient set", "");
}

static void become_user(const struct options *options)
{
	if (setgroups(options->group_count, options->groups) != 0)
		fail("setgroups", "");
	if (setresgid(options->gid, options->gid, options->gid) != 0)
		fail("setresgid", "");
	if (setresuid(options->uid, options->uid, options->uid) != 0)
		fail("setresuid", "");
}

void drop_privileges(const struct options *options, uint64_t capabilities)
{
	keep_bounding_set(capabilities);
	become_user(options);
	keep_capabilities(capabilities);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		fail("no_new_privs", "");
	/* If this works, one of the steps above has silently failed. */
	if (options->mode != MODE_TOOL && setuid(0) == 0) {
		errno = EPERM;
		fail("still privileged", "");
	}
}

static void close_between(unsigned int first, unsigned int last)
{
	if (first <= last && syscall(SYS_close_range, first, last, 0) != 0)
		fail("close_range", "");
}

void close_descriptors(const int *keep, size_t keep_count)
{
	unsigned int first = STDERR_FILENO + 1;

	for (size_t i = 0; i < keep_count; i++) {
		close_between(first, (unsigned int)keep[i] - 1);
		first = (unsigned int)keep[i] + 1;
	}
	close_between(first, ~0U);
}
