/* Reads the guest's memory from outside of its monitor. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "problem.h"
#include "source.h"

/* Bits of a pagemap entry. A page in the page cache belongs to its file. */
#define ENTRY_PRESENT (UINT64_C(1) << 63)
#define ENTRY_SWAPPED (UINT64_C(1) << 62)
#define ENTRY_OF_FILE (UINT64_C(1) << 61)

/* Longer than a line of maps without its path. */
enum { LINE_BYTES_MAX = 8192 };

static void read_exactly(int fd, void *to, size_t length, uint64_t offset, const char *what)
{
	char *next = to;

	while (length > 0) {
		ssize_t got = pread(fd, next, length, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0)
			errno = ESRCH;
		if (got <= 0)
			fail(what);
		next += got;
		length -= (size_t)got;
		offset += (uint64_t)got;
	}
}

static void add_line(const struct source *source, const char *line, void (*add)(uint64_t first, uint64_t count))
{
	const uint64_t end_of_memory = source->address + source->pages * PAGE_BYTES;
	unsigned long long start, end, inode;
	char permissions[5];

	if (sscanf(line, "%llx-%llx %4s %*s %*s %llu", &start, &end, permissions, &inode) != 4) {
		errno = EPROTO;
		fail("maps");
	}
	if (start < source->address)
		start = source->address;
	if (end > end_of_memory)
		end = end_of_memory;
	if (start < end && inode != 0)
		add((start - source->address) / PAGE_BYTES, (end - start) / PAGE_BYTES);
}

void find_mapped_files(const struct source *source, void (*add)(uint64_t first, uint64_t count))
{
	static char buffer[2 * LINE_BYTES_MAX + 1];
	size_t kept = 0;
	ssize_t got;

	while ((got = read(source->maps, buffer + kept, sizeof buffer - 1 - kept)) > 0) {
		char *line = buffer;
		char *end;

		kept += (size_t)got;
		buffer[kept] = '\0';
		while ((end = strchr(line, '\n')) != NULL) {
			*end = '\0';
			add_line(source, line, add);
			line = end + 1;
		}
		kept -= (size_t)(line - buffer);
		memmove(buffer, line, kept);
	}
	if (got < 0)
		fail("maps");
}

void find_owned(const struct source *source, uint64_t first, uint64_t count, bool *owned)
{
	uint64_t entries[STEP_PAGES];

	read_exactly(source->pagemap, entries, count * sizeof entries[0],
		     (source->address / PAGE_BYTES + first) * sizeof entries[0], "pagemap");
	for (uint64_t i = 0; i < count; i++)
		owned[i] = (entries[i] & (ENTRY_PRESENT | ENTRY_SWAPPED)) != 0 && (entries[i] & ENTRY_OF_FILE) == 0;
}

void read_pages(const struct source *source, uint64_t first, uint64_t count, void *to)
{
	read_exactly(source->memory, to, count * PAGE_BYTES, source->address + first * PAGE_BYTES, "memory");
}
