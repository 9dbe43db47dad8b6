#ifndef COPPICE_LAUNCH_MOUNTS_H
#define COPPICE_LAUNCH_MOUNTS_H

#include "options.h"

#define PATH_BYTES_MAX 4096

/* Writes "directory/name" to `path`, which has PATH_BYTES_MAX bytes. */
void join_path(char *path, const char *directory, const char *name);
void bind_mount(const char *source, const char *target, unsigned long flags);
/* Mounts /dev below `root`, with the nodes that every program needs and those of the VM. Writable until sealed. */
void mount_devices(const char *root, const struct options *options);
void seal_devices(const char *root);
/* Mounts a read-only /proc below `root`, which shows only the program's own processes. */
void mount_processes(const char *root);
/* Makes a namespace, unless the service's unit forbids it. Returns whether it did. */
int unshare_if_allowed(int flag, const char *name);
/* Hides later mounts from the host. */
void make_mounts_private(void);
/* Makes `root` the root of this process, and unmounts the old one. */
void pivot_into(const char *root);

#endif
