/* Connections over the stream that the host opens to a port of the guest. */
#ifndef COPPICE_CONNECTION_H
#define COPPICE_CONNECTION_H

#include <stdbool.h>

#include "frame.h"

/* Handles NET_DIAL. Returns false when the frame is malformed. */
bool connection_dial(const struct frame *frame);

#endif
