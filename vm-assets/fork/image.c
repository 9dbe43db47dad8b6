/* Writes a memory file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "image.h"
#include "problem.h"
#include "source.h"

/* src/vm/qemu/memory-file.ts and vm-assets/memory/memory.c have the same numbers; change all together. */
#define MAGIC UINT64_C(0x314d454d49504f43)
/*
 * Each range and each gap is a mapping of the copy's monitor, and the kernel allows a process 65,530 of them. A pass makes
 * FREE_EXTENTS ranges as they are. Then it fills the gaps that are shorter than this part of the memory, which limits the rest.
 * A range of the second pass can also be alone in a gap of the first one.
 */
#define FREE_EXTENTS UINT64_C(6000)
#define FURTHER_EXTENTS UINT64_C(4000)
#define EXTENTS_MAX (3 * (FREE_EXTENTS + FURTHER_EXTENTS) + 2)

struct extent {
	uint64_t offset;
	uint64_t length;
};

struct table {
	uint64_t magic;
	uint64_t memory_bytes;
	uint64_t bytes;
	uint64_t count;
	struct extent extents[];
};

#define TABLE_BYTES ((sizeof(struct table) + EXTENTS_MAX * sizeof(struct extent) + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES)

static int file;
static char *content;
static uint64_t file_bytes_max;
static uint64_t pages_count;
/* for each page of the guest, 1 + its position among the pages of the file; 0: the file does not have it */
static uint32_t *places;
/* for each page of the file, the page of the guest */
static uint32_t *owners;
static uint64_t used;
/* ranges of this pass */
static uint64_t ranges;

void open_image(int fd, uint64_t pages)
{
	file = fd;
	pages_count = pages;
	places = calloc(pages, sizeof places[0]);
	owners = calloc(pages, sizeof owners[0]);
	if (places == NULL || owners == NULL)
		fail("calloc");
	file_bytes_max = TABLE_BYTES + pages * PAGE_BYTES;
	if (ftruncate(fd, (off_t)file_bytes_max) != 0)
		fail("ftruncate");
	content = mmap(NULL, file_bytes_max, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (content == MAP_FAILED)
		fail("mmap");
}

static void *page_at(uint64_t place)
{
	return content + TABLE_BYTES + place * PAGE_BYTES;
}

void *find_page(uint64_t page)
{
	return places[page] == 0 ? NULL : page_at(places[page] - 1);
}

static void *append(uint64_t page)
{
	owners[used] = (uint32_t)page;
	places[page] = (uint32_t)++used;
	return page_at(used - 1);
}

/* Returns false when the gap between the latest page and `page` is too long, or has pages of an earlier pass. */
static bool fill_gap(uint64_t page)
{
	const uint64_t last = owners[used - 1];

	if (page - last - 1 > pages_count / FURTHER_EXTENTS)
		return false;
	for (uint64_t between = last + 1; between < page; between++) {
		if (places[between] != 0)
			return false;
	}
	for (uint64_t between = last + 1; between < page; between++)
		memset(append(between), 0, PAGE_BYTES);
	return true;
}

void *add_page(uint64_t page)
{
	const bool is_next = ranges > 0 && owners[used - 1] + 1 == page;

	if (!is_next && (ranges < FREE_EXTENTS || !fill_gap(page)))
		ranges++;
	return append(page);
}

void begin_pass(void)
{
	ranges = 0;
}

uint64_t close_image(void)
{
	struct table *table = (struct table *)(void *)content;
	uint64_t file_bytes = TABLE_BYTES + used * PAGE_BYTES;
	uint64_t count = 0;

	/* A page that was never written would be a hole. */
	memset(table, 0, TABLE_BYTES);
	for (uint64_t place = 0; place < used; place++) {
		if (place > 0 && owners[place] == owners[place - 1] + 1) {
			table->extents[count - 1].length += PAGE_BYTES;
			continue;
		}
		if (count == EXTENTS_MAX) {
			errno = E2BIG;
			fail("extents");
		}
		table->extents[count++] = (struct extent){ (uint64_t)owners[place] * PAGE_BYTES, PAGE_BYTES };
	}
	table->magic = MAGIC;
	table->memory_bytes = pages_count * PAGE_BYTES;
	table->bytes = TABLE_BYTES;
	table->count = count;
	/* A mapping that may be written to would prevent the sealing of the file. */
	if (munmap(content, file_bytes_max) != 0 || ftruncate(file, (off_t)file_bytes) != 0)
		fail("ftruncate");
	return file_bytes;
}
