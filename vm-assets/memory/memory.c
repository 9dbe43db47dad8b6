/*
 * memory.so: gives the clone of a template its memory.
 *
 * Preloaded into QEMU. A template's memory file holds the pages that the template has touched, one after another,
 * behind a table that says where they belong. When QEMU maps the anonymous memory of its guest, they are mapped over
 * it, private and written by nobody else. What the guest touches beyond them is anonymous memory of its own QEMU, so
 * that no guest makes the file grow, which all clones share.
 *
 * A mapping of the guest's memory that is not recognised leaves a guest without its kernel: the clone never answers.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Keep in sync with src/vm/qemu/memory-file.ts, which writes it. Numbers are little endian. */
#define MAGIC UINT64_C(0x314d454d49504f43)
/* Keep in sync with src/vm/qemu/qemu.ts. */
#define FILE_VARIABLE "GUEST_MEMORY_FD"

enum { EXIT_REFUSED = 125 };

struct extent {
	uint64_t offset; /* in the guest's memory */
	uint64_t length;
};

struct table {
	uint64_t magic;
	uint64_t memory_bytes;
	uint64_t bytes; /* of the table, filled up to whole pages */
	uint64_t count;
	struct extent extents[];
};

static const struct table *table;
static int file = -1;

static _Noreturn void refuse(const char *reason)
{
	fprintf(stderr, "memory.so: %s\n", reason);
	_exit(EXIT_REFUSED);
}

static void *map(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
{
	return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

/* The loader has read it; nothing of the host's that QEMU has no use for stays open in it. */
static void close_itself(void)
{
	const char *path = getenv("LD_PRELOAD");
	const char *number = path == NULL ? NULL : strrchr(path, '/');

	if (number != NULL)
		close(atoi(number + 1));
}

__attribute__((constructor)) static void open_table(void)
{
	const char *number = getenv(FILE_VARIABLE);
	const struct table *found;
	off64_t bytes;

	if (number == NULL)
		refuse("no " FILE_VARIABLE);
	file = atoi(number);
	bytes = lseek64(file, 0, SEEK_END);
	if (bytes < (off64_t)sizeof *found)
		refuse("no memory file");
	found = map(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, file, 0);
	if (found == MAP_FAILED || found->magic != MAGIC)
		refuse("not a memory file");
	table = found;
	close_itself();
}

/* Mapped once: private, and of the guest's size, at a place that QEMU has reserved before. */
static bool is_guest_memory(size_t length, int protection, int flags)
{
	const int wanted = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

	return table != NULL && length == table->memory_bytes && (flags & wanted) == wanted &&
	       protection == (PROT_READ | PROT_WRITE);
}

static void lay_over(char *memory)
{
	uint64_t from = table->bytes;

	for (uint64_t i = 0; i < table->count; i++) {
		const struct extent *extent = &table->extents[i];

		if (map(memory + extent->offset, extent->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file,
			(off64_t)from) == MAP_FAILED)
			refuse("the memory cannot be mapped");
		from += extent->length;
	}
	table = NULL;
	close(file);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
{
	void *mapped = map(address, length, protection, flags, fd, offset);

	if (mapped != MAP_FAILED && is_guest_memory(length, protection, flags))
		lay_over(mapped);
	return mapped;
}
