/* Paths inside the merged root, resolved by the kernel with that root as "/". */
#ifndef COPPICE_RESOLVE_H
#define COPPICE_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

/* openat2(2) with RESOLVE_IN_ROOT, close on exec; -1 and errno. */
int resolve_open(int root, const char *path, int flags, unsigned mode, uint64_t resolve);
/* Makes the directory of `path` (`whole`: and `path` itself) as far as it is missing, mode 0755, owner root. */
bool resolve_make_directories(int root, const char *path, bool whole, uint64_t resolve, struct problem *problem);

#endif
