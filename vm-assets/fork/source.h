#ifndef COPPICE_FORK_SOURCE_H
#define COPPICE_FORK_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_BYTES 4096U
/* Number of pages that are looked at together. */
#define STEP_PAGES 512U

/* The guest's memory in the monitor's address space. */
struct source {
	/* /proc/PID/mem, pagemap and maps of the monitor */
	int memory;
	int pagemap;
	int maps;
	/* where the guest's memory begins; multiple of PAGE_BYTES */
	uint64_t address;
	uint64_t pages;
};

/* Calls `add` for each range of pages that a file is mapped to. */
void find_mapped_files(const struct source *source, void (*add)(uint64_t first, uint64_t count));
/* Sets owned[i] for each of `count` pages, at most STEP_PAGES, that belongs to the monitor alone. */
void find_owned(const struct source *source, uint64_t first, uint64_t count, bool *owned);
void read_pages(const struct source *source, uint64_t first, uint64_t count, void *to);

#endif
