/* The guest's network: programs reach names and addresses outside through the host, which judges every request. */
#ifndef COPPICE_NETWORK_H
#define COPPICE_NETWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "../frame.h"

/* Sets the network up, off. Without it, or with a kernel that cannot do it, the machine works otherwise. */
void network_open(void);
/* Handles events. Returns false when the key does not belong to the network. */
bool network_ready(uint64_t key);
/* Handles some events that came. Returns true when something moved. */
bool network_pump(uint64_t now_ns);
/* Time of the next pump without an event; UINT64_MAX: never. */
uint64_t network_deadline(void);
/* A command starts. `alone`: no other runs; then a name server that an earlier one had is gone. */
void network_begin_command(const char *hostname, bool alone);
/* The host is gone. Until the next one, network_pump must not be called: programs wait. */
void network_lose_host(void);
/* Turns the network off: a host begins that knows of no earlier one. */
void network_reset(void);

/* Handle NETWORK and RESOLVED. Return false when the frame is malformed. */
bool network_switch(const struct frame *frame);
bool network_resolved(const struct frame *frame);

#endif
