#ifndef COPPICE_LOOP_H
#define COPPICE_LOOP_H

#include <stdint.h>

#include "session.h"

/* Adds a descriptor of a session; what it reports is remembered until read or write say EAGAIN. */
void loop_watch(int fd, unsigned slot, enum watch watch);
/* An output stream reports once, and is watched again when it was read empty. */
void loop_watch_again(int fd, unsigned slot, enum watch watch);
/* CLOCK_MONOTONIC in ns. */
uint64_t loop_now(void);

#endif
