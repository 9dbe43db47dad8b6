/* The root of a virtual machine monitor: a prepared directory that contains only what the program needs. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "mounts.h"
#include "roots.h"

void enter_vm_root(const struct options *options)
{
	char path[PATH_BYTES_MAX];

	if (unshare(CLONE_NEWNS | CLONE_NEWNET) != 0)
		fail("unshare", "");
	unshare_if_allowed(CLONE_NEWCGROUP, "cgroup");
	unshare_if_allowed(CLONE_NEWIPC, "ipc");
	if (unshare_if_allowed(CLONE_NEWUTS, "uts") && sethostname("vm", 2) != 0)
		fail("sethostname", "");
	/* Device nodes get exactly the given modes. */
	umask(0);
	make_mounts_private();
	bind_mount(options->root, options->root, MS_RDONLY | MS_NOSUID | MS_NODEV);
	join_path(path, options->root, "vm");
	bind_mount(options->vm, path, MS_NOSUID | MS_NODEV | MS_NOEXEC);
	mount_devices(options->root, options);
	seal_devices(options->root);
	mount_processes(options->root);
	pivot_into(options->root);
	umask(0077);
}
