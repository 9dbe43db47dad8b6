#include "rings.h"

#include <sys/mman.h>

#include "budget.h"

/* Since Linux 5.18, and in no header of the C library: MADV_DONTNEED for pages that are locked, as the agent's are. */
#define DONTNEED_LOCKED 24

static _Alignas(4096) uint8_t rings[INPUTS_COUNT_MAX][INPUT_WINDOW_BYTES_MAX];

bool rings_prepare(void)
{
	/* What a command is forked from is part of its largest memory, as the kernel counts it. */
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
