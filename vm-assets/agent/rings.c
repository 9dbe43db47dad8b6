#include "rings.h"

#include <stddef.h>
#include <sys/mman.h>

#include "budget.h"

/* MADV_DONTNEED for locked pages, which the agent's are; since Linux 5.18, and missing from the C library's headers. */
#define DONTNEED_LOCKED 24
#define RINGS_BYTES ((size_t)INPUTS_COUNT_MAX * INPUT_WINDOW_BYTES_MAX)

static uint8_t *rings;

bool rings_prepare(void)
{
	/*
	 * As static tables they would make the agent larger than the memory of a small guest, whose kernel would not run it.
	 * Credit bounds what they contain, so the kernel need not have memory for all of them.
	 */
	void *mapped =
		mmap(NULL, RINGS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (mapped == MAP_FAILED)
		return false;
	rings = mapped;
	/* The kernel counts the memory that a command was forked with in its largest resident set, so rings are not inherited. */
	return madvise(rings, RINGS_BYTES, MADV_DONTFORK) == 0;
}

uint8_t *rings_of_process(unsigned slot)
{
	return rings + (size_t)slot * INPUT_WINDOW_BYTES_MAX;
}

uint8_t *rings_of_connection(unsigned slot)
{
	return rings_of_process(PROCESSES_COUNT_MAX + slot);
}

uint8_t *rings_of_file(unsigned slot)
{
	return rings_of_connection(CONNECTIONS_COUNT_MAX + slot);
}

void rings_forget(uint8_t *ring)
{
	if (madvise(ring, INPUT_WINDOW_BYTES_MAX, DONTNEED_LOCKED) != 0)
		madvise(ring, INPUT_WINDOW_BYTES_MAX, MADV_DONTNEED);
}
