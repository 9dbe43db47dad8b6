#include "rings.h"

#include <string.h>
#include <sys/mman.h>

#include "budget.h"

/* MADV_DONTNEED for locked pages, which the agent's are; since Linux 5.18, and missing from the C library's headers. */
#define DONTNEED_LOCKED 24
#define INPUTS_BYTES ((size_t)INPUTS_COUNT_MAX * INPUT_WINDOW_BYTES_MAX)
#define RINGS_BYTES (INPUTS_BYTES + (size_t)KEEPS_COUNT_MAX * WINDOW_BYTES_INITIAL)

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

uint8_t *rings_of_output(unsigned slot, unsigned stream)
{
	return rings + INPUTS_BYTES + (2 * (size_t)slot + stream) * WINDOW_BYTES_INITIAL;
}

void rings_forget(uint8_t *ring, size_t touched)
{
	explicit_bzero(ring, touched);
	if (madvise(ring, touched, DONTNEED_LOCKED) != 0)
		madvise(ring, touched, MADV_DONTNEED);
}
