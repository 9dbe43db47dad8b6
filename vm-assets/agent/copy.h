/* Copies one object of a layer to another layer, with everything that can be observed of it. */
#ifndef COPPICE_COPY_H
#define COPPICE_COPY_H

#include <stdbool.h>
#include <sys/stat.h>

#include "problem.h"

/*
 * For copies between any file systems in a process whose working directory has a symlink to each of its open files: attributes
 * that the other file system does not have are left out. `progress` is called while content is copied.
 */
void copy_between_mounts(bool (*progress)(struct problem *problem));

/*
 * Copies the object `name`, which is not a directory, from the directory `from` to the directory `to`, which has no object
 * `new_name`: content with holes, link target, device numbers, and everything that copy_attributes copies.
 */
bool copy_object(int from, const char *name, int to, const char *new_name, const struct stat *status,
	struct problem *problem);

/*
 * Gives the open directory or file `to` the owner, extended attributes, mode, flags and times of `from`, in an order in
 * which no step undoes another. overlayfs' internal attributes are left out. Call it for a directory when all of its
 * entries exist: they would inherit a default ACL, and creating them changes its times.
 */
bool copy_attributes(int from, int to, const struct stat *status, struct problem *problem);

/* True when overlayfs hides what lies below the open directory. */
bool copy_is_opaque(int directory);
bool copy_set_opaque(int directory, struct problem *problem);
/* Marks a directory that contains whiteouts. Without the mark, overlayfs looks for them only in merged directories. */
bool copy_set_whiteouts(int directory, struct problem *problem);

#endif
