/* Copies one object of a layer into another, so that nobody can tell them apart. */
#ifndef COPPICE_COPY_H
#define COPPICE_COPY_H

#include <stdbool.h>
#include <sys/stat.h>

#include "problem.h"

/*
 * Copies what is `name` in the directory `from` and no directory to the directory `to`, which has none of that
 * name: content with its holes, target, device, and everything that copy_attributes copies.
 */
bool copy_object(int from, int to, const char *name, const struct stat *status, struct problem *problem);

/*
 * Gives the open directory or file `to` the owner, extended attributes, mode, flags and times of `from`, in the order
 * in which none undoes another. Attributes by which overlayfs keeps its books are left out. For a directory it
 * must come after all that is made in it: a default ACL would be handed down, and times would change.
 */
bool copy_attributes(int from, int to, const struct stat *status, struct problem *problem);

/* True when overlayfs hides what lies below the open directory. */
bool copy_is_opaque(int directory);
bool copy_set_opaque(int directory, struct problem *problem);
/* Tells overlayfs that the directory has whiteouts, which it otherwise looks for only where directories merge. */
bool copy_set_whiteouts(int directory, struct problem *problem);

#endif
