#ifndef COPPICE_ATTRIBUTES_H
#define COPPICE_ATTRIBUTES_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/*
 * Appends the extended attributes of a file to the record, without those by which overlayfs keeps its
 * books; `opaque` tells of the one that matters. `fd`: the file, or -1, then `path` is not followed.
 */
bool attributes_append(int fd, const char *path, uint16_t *count, bool *opaque, struct problem *problem);

#endif
