/* Parts of the platform of the guest. */
#ifndef COPPICE_GUEST_H
#define COPPICE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../problem.h"

/* The agent's mount of the cgroup hierarchy. */
#define CGROUP_ROOT "/sys/fs/cgroup"

/* Writes a string to an existing file. Keeps errno. */
bool write_file(const char *path, const char *text);
/* Reads a small file and terminates it with NUL. Returns its length, or -1. */
int read_file(const char *path, char *buffer, size_t size);

/* Opens the directory of modules, before the agent leaves the initramfs. */
void modules_open(void);
/* Loads the modules of a list in the initramfs. A failure ends the machine. */
void modules_load(const char *list);
/* Releases the directory of modules. */
void modules_forget(void);

/* Opens the agent's virtio-serial port. */
int port_open(void);
/* Listens on the agent's vsock port. */
int vsock_listen(void);

/* Opens the socket of uevents, which wakes up a wait for a disk. */
void disks_open(void);
/* Waits for the disk with `serial`, and returns its device path. */
bool disks_find(const char *serial, uint64_t deadline_ns, char *device, size_t size, struct problem *problem);
/* Removes all identified disks from the kernel, so that new disks can have the same serials. */
bool disks_forget(struct problem *problem);

/* Releases the free space of the scratch, which is mounted, to the host. */
bool trim_scratch(const char *device, uint64_t *trimmed_bytes, struct problem *problem);

/* Makes the cgroup of all commands, with its limits. */
void cgroup_open(void);

/* Mounts /dev and /sys in the merged root, and a cover over its /proc. */
bool root_furnish(struct problem *problem);
/* Unmounts them again. */
bool root_clear(struct problem *problem);
/* Mounts on a directory below `root`, without following symlinks. */
bool root_mount(const char *root, const char *target, const char *type, unsigned long flags, const char *options,
	struct problem *problem);

#endif
