#ifndef COPPICE_LAUNCH_PRIVILEGES_H
#define COPPICE_LAUNCH_PRIVILEGES_H

#include "options.h"

void set_limits(const struct options *options);
/* Drops all privileges except `capabilities`. */
void drop_privileges(const struct options *options, uint64_t capabilities);
/* Closes all descriptors except 0, 1, 2 and those in `keep`, which must ascend. */
void close_descriptors(const int *keep, size_t keep_count);

#endif
