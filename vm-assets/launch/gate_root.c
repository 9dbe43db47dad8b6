/*
 * The root of the process that connects to the outside. It is in the host's network, and has no file but its executable,
 * which it sees as /program, and the given ones, read-only, at their host paths.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "mounts.h"
#include "roots.h"

enum { FILE_FLAGS = MS_RDONLY | MS_NOSUID | MS_NODEV, ROOT_FLAGS = MS_NOSUID | MS_NODEV };

static void make_directory(const char *path)
{
	if (mkdir(path, 0755) != 0 && errno != EEXIST)
		fail("mkdir", path);
}

/* Creates the directories above `path`, which lies below `root`. */
static void make_parents(char *path, const char *root)
{
	for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		make_directory(path);
		*slash = '/';
	}
}

/* Shows a file or directory of the host at `own_path`. */
static void show(const char *root, const char *host_path, const char *own_path)
{
	char path[PATH_BYTES_MAX];
	struct stat status;
	int fd;

	if (stat(host_path, &status) != 0)
		fail("stat", host_path);
	join_path(path, root, own_path + 1);
	make_parents(path, root);
	if (S_ISDIR(status.st_mode)) {
		make_directory(path);
	} else {
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
		if (fd < 0)
			fail("create", path);
		close(fd);
	}
	bind_mount(host_path, path, FILE_FLAGS);
}

void enter_gate_root(const struct options *options)
{
	static const char *const empty[] = { "dev", "proc" };
	char path[PATH_BYTES_MAX];

	if (unshare(CLONE_NEWNS) != 0)
		fail("unshare", "");
	unshare_if_allowed(CLONE_NEWCGROUP, "cgroup");
	unshare_if_allowed(CLONE_NEWIPC, "ipc");
	umask(0);
	make_mounts_private();
	if (mount("tmpfs", options->root, "tmpfs", ROOT_FLAGS, "mode=0755,size=1m,nr_inodes=256") != 0)
		fail("mount", options->root);
	for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++) {
		join_path(path, options->root, empty[i]);
		make_directory(path);
	}
	show(options->root, options->executable, "/program");
	for (size_t i = 0; i < options->readable_count; i++)
		show(options->root, options->readable[i], options->readable[i]);
	mount_devices(options->root, options);
	seal_devices(options->root);
	mount_processes(options->root);
	if (mount(NULL, options->root, NULL, MS_REMOUNT | MS_RDONLY | ROOT_FLAGS, "mode=0755") != 0)
		fail("remount", options->root);
	pivot_into(options->root);
	umask(0077);
}
