/* Mounts layers, the scratch and their overlay, and unmounts them. */
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "../clock.h"
#include "../platform.h"
#include "../protocol.h"
#include "guest.h"

/*
 * Finding a hundred disks on a busy host, or one on an emulated host, may take this long. The host waits slightly longer
 * (MOUNT_MS_MAX).
 */
#define DISKS_WAIT_NS 170000000000ULL
/* Dead commands release their mounts within milliseconds. */
#define RELEASE_WAIT_NS 5000000000ULL
#define EROFS_SUPER_OFFSET 1024
#define LAYER_FLAGS (MS_RDONLY | MS_NODEV | MS_NOSUID | MS_NOATIME)
#define SCRATCH_FLAGS (MS_NODEV | MS_NOSUID | MS_NOATIME)
/*
 * The semantics that users of containers know. The host's index follows no redirects and no metacopy either. Device nodes
 * of an image are listed but do not work (nodev); root_furnish makes the /dev of commands.
 */
#define OVERLAY_OPTIONS "upperdir=/s/upper,workdir=/s/work,index=off,metacopy=off,redirect_dir=nofollow,xino=off,nfs_export=off"
/* mount(2) takes one page of options; the longest list of layers fits. */
#define OPTIONS_BYTES 4096
_Static_assert(LAYERS_COUNT_MAX * sizeof "/l/000/upper:" + sizeof OVERLAY_OPTIONS + 16 < OPTIONS_BYTES, "options fit");
#define OVERLAY_FLAGS (MS_NODEV | MS_NOATIME)

/*
 * Attaching a disk makes the controller interrupt commands to earlier ones, and the kernel gives up a command that was
 * interrupted too often. So reads that failed while disks are being attached are retried.
 */
static bool try_again(uint64_t deadline_ns)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	if (errno != EIO || clock_now() >= deadline_ns)
		return false;
	nanosleep(&pause, NULL);
	return true;
}

/* Checked before mounting, because the kernel logs an error when the type of a file system is wrong. */
static bool is_erofs(const char *device, uint64_t deadline_ns)
{
	uint32_t magic = 0;
	ssize_t count;
	int fd = open(device, O_RDONLY | O_CLOEXEC);
	do
		count = fd < 0 ? -1 : pread(fd, &magic, sizeof magic, EROFS_SUPER_OFFSET);
	while (count < 0 && try_again(deadline_ns));
	close(fd);
	return count == (ssize_t)sizeof magic && magic == EROFS_SUPER_MAGIC_V1;
}

static bool mount_layer(unsigned number, uint64_t deadline_ns, struct problem *problem)
{
	char serial[8];
	char target[16];
	char device[64];
	snprintf(serial, sizeof serial, "L%02u", number);
	snprintf(target, sizeof target, "/l/%02u", number);
	if (!disks_find(serial, deadline_ns, device, sizeof device, problem))
		return false;
	mkdir(target, 0755);
	const char *type = is_erofs(device, deadline_ns) ? "erofs" : "ext4";
	int result;
	do
		result = mount(device, target, type, LAYER_FLAGS, NULL);
	while (result != 0 && try_again(deadline_ns));
	if (result != 0)
		return problem_set(problem, errno, "layer %s is neither erofs nor ext4", serial);
	return true;
}

int platform_open_layer(unsigned layer)
{
	char serial[8];
	char device[64];
	struct problem problem;
	snprintf(serial, sizeof serial, "L%02u", layer);
	return disks_find(serial, 0, device, sizeof device, &problem) ? open(device, O_RDONLY | O_CLOEXEC) : -1;
}

static bool copy_xattrs(const char *from, const char *to, struct problem *problem)
{
	static char names[XATTR_LIST_MAX];
	static char value[XATTR_SIZE_MAX];
	ssize_t size = llistxattr(from, names, sizeof names);
	if (size < 0)
		return errno == ENOTSUP ? true : problem_set(problem, errno, "attributes of %s", from);
	for (char *name = names; name < names + size; name += strlen(name) + 1) {
		if (strncmp(name, "trusted.overlay.", 16) == 0)
			continue;
		ssize_t length = lgetxattr(from, name, value, sizeof value);
		if (length < 0 || lsetxattr(to, name, value, (size_t)length, 0) != 0)
			return problem_set(problem, errno, "attribute %s of the root", name);
	}
	return true;
}

/*
 * The merged "/" is the root of the upper layer, so that gets all attributes of the layer's root below it. Times are set
 * last, because the other steps change them.
 */
static bool copy_root(unsigned top_layer, struct problem *problem)
{
	char from[32];
	const char *to = "/s/upper";
	struct stat status;
	snprintf(from, sizeof from, "/l/%02u/upper", top_layer);
	if (lstat(from, &status) != 0 || !S_ISDIR(status.st_mode))
		return problem_set(problem, ENOTDIR, "/upper of layer L%02u", top_layer);
	if (chown(to, status.st_uid, status.st_gid) != 0)
		return problem_set(problem, errno, "owner of the root");
	if (!copy_xattrs(from, to, problem))
		return false;
	if (chmod(to, status.st_mode & 07777) != 0)
		return problem_set(problem, errno, "mode of the root");
	struct timespec times[2] = {status.st_atim, status.st_mtim};
	if (utimensat(AT_FDCWD, to, times, 0) != 0)
		return problem_set(problem, errno, "times of the root");
	return true;
}

static bool mount_scratch(uint64_t deadline_ns, struct problem *problem)
{
	char device[64];
	if (!disks_find("S", deadline_ns, device, sizeof device, problem))
		return false;
	/* noinit_itable: the file system was copied from a template, and must not get background writes. */
	int result;
	do
		result = mount(device, "/s", "ext4", SCRATCH_FLAGS, "noinit_itable,nodiscard");
	while (result != 0 && try_again(deadline_ns));
	if (result != 0)
		return problem_set(problem, errno, "scratch %s", device);
	return true;
}

static bool mount_overlay(unsigned layers, struct problem *problem)
{
	char options[OPTIONS_BYTES];
	size_t length = (size_t)snprintf(options, sizeof options, "lowerdir=");
	/* Highest layer first. */
	for (unsigned number = layers; number-- > 0;)
		length += (size_t)snprintf(options + length, sizeof options - length, "/l/%02u/upper%s", number,
			number > 0 ? ":" : "");
	snprintf(options + length, sizeof options - length, ",%s", OVERLAY_OPTIONS);
	if (mount("overlay", "/r", "overlay", OVERLAY_FLAGS, options) != 0)
		return problem_set(problem, errno, "overlay of %u layers", layers);
	return true;
}

/* true when the overlay is mounted */
static bool has_root;

bool platform_mount(unsigned layers, enum mounts mounts, struct problem *problem)
{
	uint64_t deadline_ns = clock_now() + DISKS_WAIT_NS;
	for (unsigned number = 0; number < layers; number++)
		if (!mount_layer(number, deadline_ns, problem))
			return false;
	if (mounts == MOUNTS_LAYERS)
		return true;
	if (!mount_scratch(deadline_ns, problem))
		return false;
	has_root = mounts == MOUNTS_ROOT;
	return !has_root ||
	       (copy_root(layers - 1, problem) && mount_overlay(layers, problem) && root_furnish(problem));
}

/* Retries while the mount is busy, until the remains of a command are gone. */
static bool settles(int (*attempt)(void))
{
	const struct timespec pause = {.tv_nsec = 5000000};
	for (uint64_t end_ns = clock_now() + RELEASE_WAIT_NS;;) {
		if (attempt() == 0)
			return true;
		if (errno != EBUSY || clock_now() >= end_ns)
			return false;
		nanosleep(&pause, NULL);
	}
}

static int unmount_root(void)
{
	return umount2("/r", 0);
}

static int unmount_scratch(void)
{
	return umount2("/s", 0);
}

static char scratch_device[64];

/* EBUSY: the file system is still mounted writable somewhere. */
static int mount_frozen(void)
{
	return mount(scratch_device, "/s", "ext4", LAYER_FLAGS, NULL);
}

/*
 * The kernel remembers a failed write of a file system, and reports it to the first who syncs. A command that ended well
 * may have left data in the page cache that the disk then refused.
 */
bool platform_flush(struct problem *problem)
{
	int fd = open("/s", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int result = fd < 0 ? -1 : syncfs(fd);
	int error = errno;
	close(fd);
	return result == 0 ? true : problem_set(problem, error, "writing out the scratch");
}

bool platform_freeze(uint64_t *trimmed_bytes, struct problem *problem)
{
	write_file(CGROUP_ROOT "/cmd/cgroup.kill", "1");
	if (has_root && !root_clear(problem))
		return false;
	if (has_root && !settles(unmount_root))
		return problem_set(problem, errno, "unmount of the root");
	if (!platform_flush(problem))
		return false;
	if (!disks_find("S", 0, scratch_device, sizeof scratch_device, problem))
		return false;
	if (!trim_scratch(scratch_device, trimmed_bytes, problem))
		return false;
	if (!settles(unmount_scratch))
		return problem_set(problem, errno, "unmount of the scratch");
	if (!settles(mount_frozen))
		return problem_set(problem, errno, "read-only mount of the scratch");
	return true;
}

bool platform_release_disks(unsigned layers, bool scratch, struct problem *problem)
{
	char layer[16];
	if (scratch && !settles(unmount_scratch))
		return problem_set(problem, errno, "unmount of the scratch");
	for (unsigned number = 0; number < layers; number++) {
		snprintf(layer, sizeof layer, "/l/%02u", number);
		if (umount2(layer, 0) != 0)
			return problem_set(problem, errno, "unmount of layer L%02u", number);
	}
	return disks_forget(problem);
}
