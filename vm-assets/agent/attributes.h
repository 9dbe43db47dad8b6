#ifndef COPPICE_ATTRIBUTES_H
#define COPPICE_ATTRIBUTES_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/*
 * Appends the extended attributes of a file to the record, except for overlayfs' internal ones. `opaque` is set when
 * overlayfs hides what lies below the directory. `fd` is the file; when it is -1, `path` is used and not followed.
 */
bool attributes_append(int fd, const char *path, uint16_t *count, bool *opaque, struct problem *problem);

#endif
