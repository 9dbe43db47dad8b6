/* Sessions whose work a child process does. The loop relays its stream as standard output, and sends its result. */
#ifndef COPPICE_WORKER_H
#define COPPICE_WORKER_H

#include <stdint.h>

#include "child.h"

/* Opens session `id` and starts the child, or answers with the error. Closes the work's directory. */
void worker_open(uint32_t id, const struct work *work);

#endif
