/* The one epoll set of the agent: who watches a descriptor chooses the key that its events carry. */
#ifndef COPPICE_POLLER_H
#define COPPICE_POLLER_H

#include <stdint.h>

void poller_open(void);
/* `events` as epoll_ctl(2) takes them. A descriptor leaves the set when it is closed. */
void poller_add(int fd, uint32_t events, uint64_t key);
void poller_change(int fd, uint32_t events, uint64_t key);
/* Waits at most `timeout_ms` (-1: for ever) and stores the keys of what is ready; their number. */
unsigned poller_wait(uint64_t *keys, unsigned keys_max, int timeout_ms);

#endif
