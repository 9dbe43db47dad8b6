/* Buffers for bytes of the host that no program has read yet: one for each process, connection and file. */
#ifndef COPPICE_RINGS_H
#define COPPICE_RINGS_H

#include <stdbool.h>
#include <stdint.h>

/* To be called once, at the start. Returns false and errno on failure. */
bool rings_prepare(void);
/* Rings of INPUT_WINDOW_BYTES_MAX. They take memory only where they were written to. */
uint8_t *rings_of_process(unsigned slot);
uint8_t *rings_of_connection(unsigned slot);
uint8_t *rings_of_file(unsigned slot);
/* Releases the memory of a ring, whose content is lost. */
void rings_forget(uint8_t *ring);

#endif
