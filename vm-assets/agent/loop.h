/* The agent's one loop. */
#ifndef COPPICE_LOOP_H
#define COPPICE_LOOP_H

#include "transport.h"

/* Prepares the loop, and greets a host that is there. */
void loop_open(struct transport *transport);
_Noreturn void loop_run(void);

#endif
