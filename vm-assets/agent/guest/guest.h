/* Parts of the guest's platform. */
#ifndef COPPICE_GUEST_H
#define COPPICE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../problem.h"

/* /sys/fs/cgroup is the agent's own view of the cgroup tree. */
#define CGROUP_ROOT "/sys/fs/cgroup"

/* Writes a string to a file that exists; errno is kept. */
bool write_file(const char *path, const char *text);
/* Reads a small file and ends it with NUL; its length, or -1. */
int read_file(const char *path, char *buffer, size_t size);

/* Takes hold of the module files, before the agent leaves the initramfs. */
void modules_open(void);
/* Loads the modules that a list of the initramfs names; the machine ends when one fails. */
void modules_load(const char *list);
/* Gives back the memory of the module files. */
void modules_forget(void);

/* Opens the virtio-serial port of the agent. */
int port_open(void);
/* Listens on the agent's vsock port. */
int vsock_listen(void);

/* Opens the socket of uevents, so that a wait for a disk ends when it appears. */
void disks_open(void);
/* Waits for the disk with `serial` and gives its device path. */
bool disks_find(const char *serial, uint64_t deadline_ns, char *device, size_t size, struct problem *problem);
/* Takes every disk that was found away from the kernel, so that others can come under the same serials. */
bool disks_forget(struct problem *problem);

/* The cgroup of all commands, with its limits. */
void cgroup_open(void);

/* /dev and /sys of the merged root, and a cover over its /proc. */
bool root_furnish(struct problem *problem);
/* Takes the merged root apart again. */
bool root_clear(struct problem *problem);
/* Mounts on a directory below `root` that is not reached over a symlink. */
bool root_mount(const char *root, const char *target, const char *type, unsigned long flags, const char *options,
	struct problem *problem);

#endif
