/*
 * The root of a program that reads untrusted files. It contains the host's programs and libraries, read-only; the files of
 * /etc that are needed to find libraries and hosts, and, with a network, certificate authorities; three devices; and the
 * given directories, in which device nodes do not work. Nothing else of the host has a path in it, so a compromised program
 * finds neither keys nor the database.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "mounts.h"
#include "roots.h"

/*
 * Directory in which the new root is built. None of the given directories can lie below it, so none gets hidden. The
 * program gets a /proc of its own.
 */
static const char root[] = "/proc";

enum { DIRECTORY_FLAGS = MS_NOSUID | MS_NODEV };

/* On this host each may be a directory, a symlink to another of them, or missing. */
static const char *const programs[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32" };
static const char *const settings[] = {
	"/etc/host.conf",   "/etc/hosts",         "/etc/ld.so.cache", "/etc/localtime",
	"/etc/mke2fs.conf", "/etc/nsswitch.conf", "/etc/services",
};
static const char *const authorities[] = {
	"/etc/ca-certificates",
	"/etc/pki/ca-trust/extracted",
	"/etc/pki/tls/certs",
	"/etc/ssl/certs",
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void make_directory(const char *path, mode_t mode)
{
	if (mkdir(path, mode) != 0 && errno != EEXIST)
		fail("mkdir", path);
}

/* Writes the path in the new root of a host path, and creates the directories above it. */
static void map_path(char *path, const char *host_path)
{
	join_path(path, root, host_path + 1);
	for (char *slash = strchr(path + sizeof root, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		make_directory(path, 0755);
		*slash = '/';
	}
}

static void show_directory(const char *host_path, unsigned long flags)
{
	char path[PATH_BYTES_MAX];

	map_path(path, host_path);
	make_directory(path, 0755);
	bind_mount(host_path, path, flags);
}

static void make_link(const char *own_path, const char *target)
{
	char path[PATH_BYTES_MAX];

	map_path(path, own_path);
	if (symlink(target, path) != 0)
		fail("symlink", path);
}

static void show_link(const char *host_path)
{
	char target[PATH_BYTES_MAX];
	ssize_t length = readlink(host_path, target, sizeof target - 1);

	if (length < 0)
		fail("readlink", host_path);
	target[length] = '\0';
	make_link(host_path, target);
}

static void show_file(const char *host_path)
{
	char path[PATH_BYTES_MAX];
	int fd;

	map_path(path, host_path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	if (fd < 0)
		fail("create", path);
	close(fd);
	bind_mount(host_path, path, DIRECTORY_FLAGS | MS_RDONLY | MS_NOEXEC);
}

/* Not every host has all of these. */
static void show_if_present(const char *host_path, unsigned long flags)
{
	struct stat status;

	if (lstat(host_path, &status) != 0) {
		if (errno != ENOENT)
			fail("lstat", host_path);
	} else if (S_ISLNK(status.st_mode)) {
		show_link(host_path);
	} else if (S_ISDIR(status.st_mode)) {
		show_directory(host_path, flags);
	} else {
		show_file(host_path);
	}
}

static void enter_network(const struct options *options)
{
	int fd;

	if (options->network == NULL) {
		if (unshare(CLONE_NEWNET) != 0)
			fail("unshare", "net");
		return;
	}
	fd = open(options->network, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail("open", options->network);
	if (setns(fd, CLONE_NEWNET) != 0)
		fail("setns", options->network);
	close(fd);
}

void enter_tool_root(const struct options *options)
{
	const unsigned long given = DIRECTORY_FLAGS | MS_NOEXEC;
	char path[PATH_BYTES_MAX];

	enter_network(options);
	if (unshare(CLONE_NEWNS) != 0)
		fail("unshare", "");
	unshare_if_allowed(CLONE_NEWIPC, "ipc");
	umask(0);
	make_mounts_private();
	if (mount("tmpfs", root, "tmpfs", DIRECTORY_FLAGS, "mode=0755,size=4m") != 0)
		fail("mount", root);
	for (size_t i = 0; i < COUNT(programs); i++)
		show_if_present(programs[i], DIRECTORY_FLAGS | MS_RDONLY);
	join_path(path, root, "etc");
	make_directory(path, 0755);
	for (size_t i = 0; i < COUNT(settings); i++)
		show_if_present(settings[i], given | MS_RDONLY);
	/* mke2fs reads the mount table, and /proc/mounts is hidden; see mount_processes. */
	make_link("/etc/mtab", "/proc/self/mounts");
	for (size_t i = 0; options->network != NULL && i < COUNT(authorities); i++)
		show_if_present(authorities[i], given | MS_RDONLY);
	for (size_t i = 0; i < 4; i++) {
		static const char *const empty[] = { "dev", "proc", "run", "tmp" };

		join_path(path, root, empty[i]);
		make_directory(path, 0755);
	}
	/* Mounted before the given directories, because those may lie below /dev. */
	mount_devices(root, options);
	for (size_t i = 0; i < options->writable_count; i++)
		show_directory(options->writable[i], given);
	for (size_t i = 0; i < options->readable_count; i++)
		show_directory(options->readable[i], given | MS_RDONLY);
	seal_devices(root);
	mount_processes(root);
	if (mount(NULL, root, NULL, MS_REMOUNT | MS_RDONLY | DIRECTORY_FLAGS, "mode=0755") != 0)
		fail("remount", root);
	pivot_into(root);
	/* The directory exists only under the path that was given: a symlink on the host may lead to a path that is missing. */
	if (chdir(options->directory) != 0)
		fail("chdir", options->directory);
	/* Images omit the modes of some directories, and VMMs read disks under uids of their own. */
	umask(022);
}
