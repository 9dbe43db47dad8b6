/* Questions over TCP. A client may send several questions at once, and gets the answers in any order. */
#ifndef COPPICE_NETWORK_CLIENTS_H
#define COPPICE_NETWORK_CLIENTS_H

#include <stddef.h>
#include <stdint.h>

#include "asker.h"

void clients_open(int listener);
void clients_accept_ready(void);
void clients_ready(unsigned slot);
/* Reads the next message, of at most MESSAGE_BYTES_MAX. Returns its length, or -1 when none waits. */
int clients_read(uint8_t *message, struct asker *asker, uint64_t now_ns);
/* Sends an answer, which every question needs, or else clients_drop. */
void clients_reply(const struct asker *asker, const uint8_t *message, size_t size);
/* Closes the client of a question that gets no answer. */
void clients_drop(const struct asker *asker);
/* Closes clients that are idle. */
void clients_expire(uint64_t now_ns);
/* Time of the next clients_expire; UINT64_MAX: never. */
uint64_t clients_deadline(void);

#endif
