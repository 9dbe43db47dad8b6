/*
 * copy-memory: copies the memory of a running guest to a memory file, from which copies of the guest start.
 *
 * Usage: copy-memory ADDRESS BYTES, with the guest's memory at ADDRESS of its monitor. Descriptors: 3 the control socket; 4, 5
 * and 6 /proc/PID/mem, pagemap and maps of the monitor; 7 the new file, empty.
 *
 * The guest's memory is anonymous, with the pages of an earlier memory file mapped over it, private. Pages that the guest
 * has changed since then are the anonymous ones. The first pass copies the file's pages and the changed ones while the guest
 * runs. Then this program waits for a byte on the control socket, which says that the guest is paused, reads all changed
 * pages again, and writes those that differ. After each pass it writes a line of JSON to the socket, and a last one when
 * the file is complete.
 *
 * A monitor that its guest has taken over can only make its own copies wrong: nothing that it says is a position in the file.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "confine.h"
#include "image.h"
#include "problem.h"
#include "source.h"

enum { CONTROL_FD = 3, MEMORY_FD, PAGEMAP_FD, MAPS_FD, IMAGE_FD, FIRST_UNUSED_FD };
enum { THREADS_MAX = 4 };
/* Number of pages that are read at once. */
#define READ_PAGES 64U

/* What is known of a page. */
enum {
	/* a file is mapped to it */
	PAGE_OF_FILE = 1,
	/* it was anonymous in the first pass */
	PAGE_CHANGED = 2,
	/* it has no place in the image yet, and is not zero */
	PAGE_NEW = 4,
};

static struct source source = { .memory = MEMORY_FD, .pagemap = PAGEMAP_FD, .maps = MAPS_FD };
static uint8_t *states;
static const char zeros[PAGE_BYTES];
static atomic_uint_fast64_t next_step;
static atomic_uint_fast64_t changed_pages;
static atomic_uint_fast64_t rewritten_pages;
static pthread_barrier_t begun;
static pthread_barrier_t ended;

static void set_of_file(uint64_t first, uint64_t count)
{
	memset(states + first, PAGE_OF_FILE, count);
}

/* Calls `take` with the content of each page of `wanted`, reading runs of pages at once. */
static void for_each(uint64_t first, uint64_t count, const bool *wanted, void (*take)(uint64_t page, const void *content))
{
	static _Thread_local char buffer[READ_PAGES * PAGE_BYTES];
	uint64_t run;

	for (uint64_t i = 0; i < count; i += run) {
		for (run = 0; run < READ_PAGES && i + run < count && wanted[i + run]; run++)
			;
		if (run == 0) {
			run = 1;
			continue;
		}
		read_pages(&source, first + i, run, buffer);
		for (uint64_t j = 0; j < run; j++)
			take(first + i + j, buffer + j * PAGE_BYTES);
	}
}

/* A page that neither the file nor the image has is zero. */
static bool is_needed(uint64_t page, const void *content)
{
	return (states[page] & PAGE_OF_FILE) != 0 || memcmp(content, zeros, PAGE_BYTES) != 0;
}

static void copy_first(uint64_t page, const void *content)
{
	if (is_needed(page, content))
		memcpy(add_page(page), content, PAGE_BYTES);
}

static uint64_t pages_of_step(uint64_t first)
{
	return source.pages - first < STEP_PAGES ? source.pages - first : STEP_PAGES;
}

static void first_pass(void)
{
	for (uint64_t first = 0; first < source.pages; first += STEP_PAGES) {
		const uint64_t count = pages_of_step(first);
		bool wanted[STEP_PAGES];

		find_owned(&source, first, count, wanted);
		for (uint64_t i = 0; i < count; i++) {
			if (wanted[i]) {
				states[first + i] |= PAGE_CHANGED;
				changed_pages++;
			}
			wanted[i] |= (states[first + i] & PAGE_OF_FILE) != 0;
		}
		for_each(first, count, wanted, copy_first);
	}
}

static void compare(uint64_t page, const void *content)
{
	void *copy = find_page(page);

	if (copy == NULL) {
		if (is_needed(page, content))
			states[page] |= PAGE_NEW;
	} else if (memcmp(copy, content, PAGE_BYTES) != 0) {
		memcpy(copy, content, PAGE_BYTES);
		rewritten_pages++;
	}
}

/* Includes pages that the guest has freed since the first pass: they have the file's content again, or none. */
static void compare_steps(void)
{
	uint64_t first;

	while ((first = atomic_fetch_add(&next_step, STEP_PAGES)) < source.pages) {
		const uint64_t count = pages_of_step(first);
		bool wanted[STEP_PAGES];

		find_owned(&source, first, count, wanted);
		for (uint64_t i = 0; i < count; i++) {
			if (wanted[i] && (states[first + i] & PAGE_CHANGED) == 0)
				changed_pages++;
			wanted[i] |= (states[first + i] & PAGE_CHANGED) != 0;
		}
		for_each(first, count, wanted, compare);
	}
}

static void *work(void *unused)
{
	pthread_barrier_wait(&ended);
	for (;;) {
		pthread_barrier_wait(&begun);
		compare_steps();
		pthread_barrier_wait(&ended);
	}
	return unused;
}

static void copy_new(uint64_t page, const void *content)
{
	memcpy(add_page(page), content, PAGE_BYTES);
	rewritten_pages++;
}

static void second_pass(void)
{
	pthread_barrier_wait(&begun);
	compare_steps();
	pthread_barrier_wait(&ended);
	begin_pass();
	for (uint64_t first = 0; first < source.pages; first += STEP_PAGES) {
		const uint64_t count = pages_of_step(first);
		bool wanted[STEP_PAGES];

		for (uint64_t i = 0; i < count; i++)
			wanted[i] = (states[first + i] & PAGE_NEW) != 0;
		for_each(first, count, wanted, copy_new);
	}
}

/* The threads have started before the filter, which forbids the calls of their start and end. */
static void start_threads(void)
{
	cpu_set_t processors;
	int count = sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
	pthread_t thread;

	if (count > THREADS_MAX)
		count = THREADS_MAX;
	if (pthread_barrier_init(&begun, NULL, (unsigned int)count) != 0 ||
	    pthread_barrier_init(&ended, NULL, (unsigned int)count) != 0)
		fail("barrier");
	for (int i = 1; i < count; i++) {
		if (pthread_create(&thread, NULL, work, NULL) != 0)
			fail("thread");
	}
	pthread_barrier_wait(&ended);
}

static void say(uint64_t file_bytes)
{
	char line[128];
	int length = snprintf(line, sizeof line,
			      "{\"changed_bytes\":%" PRIu64 ",\"rewritten_bytes\":%" PRIu64 ",\"file_bytes\":%" PRIu64 "}\n",
			      (uint64_t)changed_pages * PAGE_BYTES, (uint64_t)rewritten_pages * PAGE_BYTES, file_bytes);

	if (write(CONTROL_FD, line, (size_t)length) != length)
		fail("control");
}

/* Ends the program when the other end of the control socket is closed. */
static void await_pause(void)
{
	char byte;
	ssize_t got;

	do
		got = read(CONTROL_FD, &byte, 1);
	while (got < 0 && errno == EINTR);
	if (got != 1)
		_exit(0);
}

static uint64_t parse(const char *text, uint64_t max)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno != 0 || text[0] < '0' || text[0] > '9' || *end != '\0' || value % PAGE_BYTES != 0 || value > max) {
		errno = EINVAL;
		fail("arguments");
	}
	return value;
}

int main(int argc, char **argv)
{
	drop_privileges(FIRST_UNUSED_FD);
	if (argc != 3) {
		errno = EINVAL;
		fail("arguments");
	}
	source.address = parse(argv[1], INT64_MAX);
	source.pages = parse(argv[2], UINT32_MAX * (uint64_t)PAGE_BYTES) / PAGE_BYTES;
	states = calloc(source.pages, 1);
	if (states == NULL)
		fail("calloc");
	open_image(IMAGE_FD, source.pages);
	start_threads();
	install_filter();
	find_mapped_files(&source, set_of_file);
	first_pass();
	say(0);
	await_pause();
	second_pass();
	say(0);
	say(close_image());
	_exit(0);
}
