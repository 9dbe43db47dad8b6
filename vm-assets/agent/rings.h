/* Buffers: for bytes of the host that no program has read yet, and for output that the next host may need. */
#ifndef COPPICE_RINGS_H
#define COPPICE_RINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* To be called once, at the start. Returns false and errno on failure. */
bool rings_prepare(void);
/* Rings of INPUT_WINDOW_BYTES_MAX, for input. They take memory only where they were written to. */
uint8_t *rings_of_process(unsigned slot);
uint8_t *rings_of_connection(unsigned slot);
uint8_t *rings_of_file(unsigned slot);
/* A ring of WINDOW_BYTES_INITIAL, for stream 0 or 1 of a process. */
uint8_t *rings_of_output(unsigned slot, unsigned stream);
/* Clears the first `touched` bytes of a ring, because they may be secret, and releases their memory. */
void rings_forget(uint8_t *ring, size_t touched);

#endif
