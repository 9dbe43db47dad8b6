/*
 * Names that the guest resolved, and the synthetic address of each. An address is never given to another name, so a program
 * that keeps an address for long cannot reach something else by it.
 */
#ifndef COPPICE_NETWORK_NAMES_H
#define COPPICE_NETWORK_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "address.h"

/* Stands for no name. */
#define NAMES_NONE (-1)

/* The entry of a name, which is made if it is new; NAMES_NONE when no address is left. */
int names_take(const char *name, size_t size);
/* The entry of a synthetic address. */
int names_of_address(const uint8_t address[ADDRESS_BYTES]);
const char *names_text(int entry, size_t *size);
void names_address(int entry, uint8_t ipv4[4]);
/* An entry that is in use by a connection is kept. Other entries are dropped, the least recently used first. */
void names_hold(int entry);
void names_release(int entry);

#endif
