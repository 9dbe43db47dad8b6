/* Mounts that the roots of monitors and of tools have in common. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fail.h"
#include "mounts.h"

enum { DEVICES_FLAGS = MS_NOSUID | MS_NOEXEC };

void join_path(char *path, const char *directory, const char *name)
{
	int length = snprintf(path, PATH_BYTES_MAX, "%s/%s", directory, name);

	if (length < 0 || length >= PATH_BYTES_MAX) {
		errno = ENAMETOOLONG;
		fail("path", name);
	}
}

/* A bind mount takes its flags only in a second call. */
void bind_mount(const char *source, const char *target, unsigned long flags)
{
	if (mount(source, target, NULL, MS_BIND, NULL) != 0)
		fail("bind", source);
	if (mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | flags, NULL) != 0)
		fail("remount", target);
}

static void make_node(const char *directory, const char *host_path, mode_t mode, uid_t uid, gid_t gid)
{
	const char *name = strrchr(host_path, '/') + 1;
	char path[PATH_BYTES_MAX];
	struct stat host;

	if (stat(host_path, &host) != 0)
		fail("stat", host_path);
	if (!S_ISCHR(host.st_mode)) {
		errno = EINVAL;
		fail("device", host_path);
	}
	join_path(path, directory, name);
	if (mknod(path, S_IFCHR | mode, host.st_rdev) != 0)
		fail("mknod", path);
	if (chown(path, uid, gid) != 0)
		fail("chown", path);
}

/* New device nodes belong to the program alone, and do not depend on the permissions of the host's nodes. */
void mount_devices(const char *root, const struct options *options)
{
	static const char *const common[] = { "/dev/null", "/dev/zero", "/dev/urandom" };
	char path[PATH_BYTES_MAX];

	join_path(path, root, "dev");
	if (mount("dev", path, "tmpfs", DEVICES_FLAGS, "mode=0755,size=64k,nr_inodes=32") != 0)
		fail("mount", path);
	for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
		make_node(path, common[i], 0666, 0, 0);
	for (size_t i = 0; i < options->device_count; i++)
		make_node(path, options->devices[i], 0600, options->uid, options->gid);
}

void seal_devices(const char *root)
{
	char path[PATH_BYTES_MAX];

	join_path(path, root, "dev");
	if (mount(NULL, path, NULL, MS_REMOUNT | MS_RDONLY | DEVICES_FLAGS, NULL) != 0)
		fail("remount", path);
}

void mount_processes(const char *root)
{
	const unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
	char path[PATH_BYTES_MAX];

	join_path(path, root, "proc");
	/* Kernels before 5.8 do not support subset=pid; there, /proc also shows the kernel's settings. */
	if (mount("proc", path, "proc", flags, "hidepid=2,subset=pid") != 0 &&
	    mount("proc", path, "proc", flags, "hidepid=2") != 0)
		fail("mount", path);
}

/*
 * The service's unit forbids the namespaces that it can do without, to reduce the attack surface of the kernel. It gives
 * the whole service a host name and an IPC namespace instead.
 */
int unshare_if_allowed(int flag, const char *name)
{
	if (unshare(flag) == 0)
		return 1;
	if (errno != EPERM)
		fail("unshare", name);
	return 0;
}

void make_mounts_private(void)
{
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		fail("private", "/");
}

void pivot_into(const char *root)
{
	if (chdir(root) != 0)
		fail("chdir", root);
	/* pivot_root stacks the old root over the new one; the next call removes it. */
	if (syscall(SYS_pivot_root, ".", ".") != 0)
		fail("pivot_root", root);
	if (umount2(".", MNT_DETACH) != 0)
		fail("detach", "old root");
	if (chdir("/") != 0)
		fail("chdir", "/");
}
