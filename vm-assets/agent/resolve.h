/* Resolves paths inside the merged root: the kernel treats that root as "/". */
#ifndef COPPICE_RESOLVE_H
#define COPPICE_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/* openat2(2) with RESOLVE_IN_ROOT and O_CLOEXEC. Returns -1 and errno on failure. */
int resolve_open(int root, const char *path, int flags, unsigned mode, uint64_t resolve);
/* Makes missing directories above `path`, and `path` itself if `whole`, with mode 0755 and owner root. */
bool resolve_make_directories(int root, const char *path, bool whole, uint64_t resolve, struct problem *problem);

#endif
