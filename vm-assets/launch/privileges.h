#ifndef COPPICE_LAUNCH_PRIVILEGES_H
#define COPPICE_LAUNCH_PRIVILEGES_H

#include "options.h"

void set_limits(const struct options *options);
/* Gives up everything but `capabilities`. */
void drop_privileges(const struct options *options, uint64_t capabilities);
/* Closes everything but 0, 1, 2 and `keep`, which is ascending. */
void close_descriptors(const int *keep, size_t keep_count);

#endif
