#ifndef COPPICE_LAUNCH_MOUNTS_H
#define COPPICE_LAUNCH_MOUNTS_H

#include "options.h"

#define PATH_BYTES_MAX 4096

/* Writes "directory/name" to `path`, of PATH_BYTES_MAX bytes. */
void below(char *path, const char *directory, const char *name);
void bind_with(const char *source, const char *target, unsigned long flags);
/* A /dev below `root` with the nodes that every program wants, and with the VM's own; it can be changed until sealed. */
void mount_devices(const char *root, const struct options *options);
void seal_devices(const char *root);
/* A /proc below `root` that cannot be written, with nothing in it but the program's own processes. */
void mount_processes(const char *root);
/* A name space that the service's unit may forbid. Returns whether it is a new one. */
int unshare_if_allowed(int flag, const char *name);
/* Nothing that is mounted from here on is seen by the host. */
void make_mounts_private(void);
/* Makes `root` the root of this process, and leaves the old one. */
void pivot_into(const char *root);

#endif
