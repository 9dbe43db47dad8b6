/* The agent's event loop. */
#ifndef COPPICE_LOOP_H
#define COPPICE_LOOP_H

#include "transport.h"

/* Prepares the loop, and greets the host if it is connected. */
void loop_open(struct transport *transport);
_Noreturn void loop_run(void);

#endif
