/* The guest's name server. It asks the host for every name, and gives each name that may be used a synthetic address. */
#ifndef COPPICE_NETWORK_RESOLVER_H
#define COPPICE_NETWORK_RESOLVER_H

#include <stdbool.h>
#include <stdint.h>

/* `on`: names are resolved; otherwise none exists. Open questions are dropped. */
void resolver_switch(bool on);
/* Answers open questions that no name can be resolved now. */
void resolver_fail(void);
/* The name of this machine, which stands for a loopback address. */
void resolver_set_hostname(const char *hostname);
/* Handles some questions. Returns true when something moved. */
bool resolver_pump(uint64_t now_ns);
/* Handles the host's answer. Returns false when it is malformed. */
bool resolver_resolved(uint32_t id, uint32_t response);
/* Time of the next pump without an event; UINT64_MAX: never. */
uint64_t resolver_deadline(void);

#endif
