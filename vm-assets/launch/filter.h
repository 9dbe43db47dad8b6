#ifndef COPPICE_LAUNCH_FILTER_H
#define COPPICE_LAUNCH_FILTER_H

#include "options.h"

/*
 * Leaves to this process, and to what it becomes, the kernel's calls that it needs: a tool the ones that are listed, a
 * monitor all but those that are listed. Whatever is refused is answered as by a kernel that does not have the call.
 * Returns the descriptor on which a tool's calls for attributes are told (see attributes.h), or -1 when they are not
 * asked for.
 */
int install_filter(const struct options *options);
/* Leaves to this process what serve_attributes does, and the waiting for the program's end. */
void install_server_filter(void);

#endif
