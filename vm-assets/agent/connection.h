/* Connections over the stream: here those that the host opens to a port of the guest. */
#ifndef COPPICE_CONNECTION_H
#define COPPICE_CONNECTION_H

#include <stdbool.h>

#include "frame.h"

/* Handler of NET_DIAL; false: malformed. */
bool connection_dial(const struct frame *frame);

#endif
