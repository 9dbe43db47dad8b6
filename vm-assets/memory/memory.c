/*
 * memory.so: maps a template's memory into its clone. It is preloaded into QEMU.
 *
 * A template's memory file contains the pages that the template has touched, one after another, after a table of their
 * positions. When QEMU maps the guest's anonymous memory, this library maps the pages over it, private and copy-on-write.
 * Other memory that the guest touches is anonymous and belongs to its QEMU, so no guest can make the shared file grow.
 *
 * If QEMU's mapping is not recognised, the guest has no kernel in its memory, and the clone never answers.
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

/* src/vm/qemu/memory-file.ts writes this format; change both together. Numbers are little-endian. */
#define MAGIC UINT64_C(0x314d454d49504f43)
/* src/vm/qemu/qemu.ts sets this variable; change both together. */
#define FILE_VARIABLE "GUEST_MEMORY_FD"

enum { EXIT_REFUSED = 125 };

struct extent {
	uint64_t offset; /* position in the guest's memory */
	uint64_t length;
};

struct table {
	uint64_t magic;
	uint64_t memory_bytes;
	uint64_t bytes; /* size of the table, rounded up to whole pages */
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

/* Closes the library's own file: the loader has mapped it, and QEMU should not keep descriptors that it does not need. */
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

/* QEMU maps the guest's memory once: private, with the guest's size, at an address that it has reserved. */
static bool is_guest_memory(size_t length, int protection, int flags)
{
	const int wanted = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

	return table != NULL && length == table->memory_bytes && (flags & wanted) == wanted &&
	       protection == (PROT_READ | PROT_WRITE);
}

static void map_template(char *memory)
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
		map_template(mapped);
	return mapped;
}
