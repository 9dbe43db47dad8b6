#ifndef COPPICE_CLOCK_H
#define COPPICE_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t clock_now(void);

#endif
