/*
 * The file that a path names, and its record. A path is resolved once, to a descriptor that only names the file (O_PATH); what
 * follows works on that file whatever the guest does to the path meanwhile.
 */
#ifndef COPPICE_PLACE_H
#define COPPICE_PLACE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "../problem.h"
#include "request.h"

struct place {
	int fd;
	struct stat status;
	int broken; /* errno with which the symlink could not be followed */
	char link[PATH_MAX]; /* text of the symlink, or where it leads when it was followed */
};

/* `follow`: the last component is followed, unless it is a symlink that leads nowhere. */
bool place_open(const char *path, bool follow, struct place *place, struct problem *problem);
/* A name of the file of a descriptor, valid until the next call: a symlink to it, for calls that follow symlinks. */
const char *place_name(int fd);
/* Opens the file itself, with O_CLOEXEC, O_NONBLOCK and O_NOCTTY. Returns -1 and errno on failure. */
int place_reopen(int fd, int flags);
/* The same for a regular file: EISDIR for a directory, ENOTSUP for what could block or act. -1 with a problem. */
int place_open_regular(const struct place *place, const char *path, int flags, struct problem *problem);

/*
 * Opens the directory of the last component of `path`, which is copied to `name`. Missing directories are made if the request
 * says so. Returns -1 with a problem; EINVAL for a path without such a component.
 */
int place_open_parent(const struct request *request, const char *path, char name[NAME_MAX + 1], struct problem *problem);
/* Gives the file of a descriptor the owner of the request, if it has one. */
bool place_own(const struct request *request, int fd, struct problem *problem);
/* Sets the attributes that are left in the request. */
bool place_set_attributes(struct request *request, int fd, struct problem *problem);

/* Sends an entry record. `attributes`: with those of the file. */
bool place_send(const char *path, const struct place *place, bool attributes, struct problem *problem);
/* Opens the file of a path and sends its record. */
bool place_send_path(const char *path, bool follow, struct problem *problem);
/* Sends the record of the entry `name` of a directory, whose path may lead elsewhere by now. */
bool place_send_entry(int parent, const char *name, const char *path, struct problem *problem);
/* Sends what waits when a second has passed since the last time; with a number, as a record of progress after it. */
bool place_progress(const uint64_t *number, struct problem *problem);

#endif
