#ifndef COPPICE_LAUNCH_FILTER_H
#define COPPICE_LAUNCH_FILTER_H

#include "options.h"

/*
 * Restricts the system calls of this process and of the program that it executes: for a tool and a gate to those in a list, for a
 * monitor to all but those in a list. A refused call returns ENOSYS. Returns the descriptor that reports a tool's calls for
 * attributes (see attributes.h); -1 when they are not requested.
 */
int install_filter(const struct options *options);
/* Restricts this process to the calls of serve_attributes and to waiting for the program. */
void install_server_filter(void);

#endif
