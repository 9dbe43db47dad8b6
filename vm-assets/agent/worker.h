/* Sessions whose work a child does; the loop relays its stream as standard output, and answers what it reports. */
#ifndef COPPICE_WORKER_H
#define COPPICE_WORKER_H

#include <stdint.h>

#include "child.h"

/* Opens session `id` and starts the child; what fails is answered. The work's directory is closed. */
void worker_open(uint32_t id, const struct work *work);

#endif
