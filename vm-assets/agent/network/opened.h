/*
 * Connections that programs of the guest open. A SYN is held until the host has connected; then it is sent again, and the
 * kernel completes the connection. So a connect succeeds when, and only when, the host has connected.
 */
#ifndef COPPICE_NETWORK_OPENED_H
#define COPPICE_NETWORK_OPENED_H

#include <stdbool.h>
#include <stdint.h>

#include "packets.h"

/* Asks the host for the connection of a held SYN, or does nothing: then the program's kernel repeats the SYN. */
void opened_take(const struct syn *syn, uint64_t now_ns);
/* Takes over a connection that the kernel completed, and closes it when no program waits for it. */
void opened_accept(int fd, const struct tuple *tuple);
/* Handles a held SYN while there is no network, without asking the host. */
void opened_deny(const struct syn *syn);

#endif
