/* Bytes of the host that no program has read yet: one ring for each process and each connection. */
#ifndef COPPICE_RINGS_H
#define COPPICE_RINGS_H

#include <stdbool.h>
#include <stdint.h>

/* Once, at the start; false and errno. */
bool rings_prepare(void);
/* Rings of INPUT_WINDOW_BYTES_MAX, which take memory where they were written to. */
uint8_t *rings_of_process(unsigned slot);
uint8_t *rings_of_connection(unsigned slot);
/* Gives back the memory of a ring; its content is lost. */
void rings_forget(uint8_t *ring);

#endif
