/* Questions over UDP. */
#ifndef COPPICE_NETWORK_DATAGRAMS_H
#define COPPICE_NETWORK_DATAGRAMS_H

#include <stddef.h>
#include <stdint.h>

#include "asker.h"

void datagrams_open(int fd);
void datagrams_ready(void);
/* Reads the next message, of at most MESSAGE_BYTES_MAX. Returns its length, or -1 when none waits. */
int datagrams_read(uint8_t *message, struct asker *asker);
void datagrams_reply(const struct asker *asker, const uint8_t *message, size_t size);

#endif
