#include "rings.h"

#include <sys/mman.h>

#include "budget.h"

/* MADV_DONTNEED for locked pages, which the agent's are; since Linux 5.18, and missing from the C library's headers. */
#define DONTNEED_LOCKED 24

static _Alignas(4096) uint8_t rings[INPUTS_COUNT_MAX][INPUT_WINDOW_BYTES_MAX];

bool rings_prepare(void)
{
	/* The kernel counts the memory that a command was forked with in its largest resident set, so rings are not inherited. */
	return madvise(rings, sizeof rings, MADV_DONTFORK) == 0;
}

uint8_t *rings_of_process(unsigned slot)
{
	return rings[slot];
}

uint8_t *rings_of_connection(unsigned slot)
{
	return rings[PROCESSES_COUNT_MAX + slot];
}

void rings_forget(uint8_t *ring)
{
	if (madvise(ring, INPUT_WINDOW_BYTES_MAX, DONTNEED_LOCKED) != 0)
		madvise(ring, INPUT_WINDOW_BYTES_MAX, MADV_DONTNEED);
}
