/* The agent's epoll set. The owner of a descriptor chooses the key that its events carry. */
#ifndef COPPICE_POLLER_H
#define COPPICE_POLLER_H

#include <stdint.h>

void poller_open(void);
/* `events` as in epoll_ctl(2). Closing a descriptor removes it. */
void poller_add(int fd, uint32_t events, uint64_t key);
void poller_change(int fd, uint32_t events, uint64_t key);
/* Waits at most `timeout_ms` (-1: no limit). Stores the keys of ready descriptors and returns their number. */
unsigned poller_wait(uint64_t *keys, unsigned keys_max, int timeout_ms);

#endif
