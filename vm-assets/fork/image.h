#ifndef COPPICE_FORK_IMAGE_H
#define COPPICE_FORK_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A memory file: a table of ranges of pages, then the pages, one after another. src/vm/qemu/memory-file.ts describes the
 * format. Pages get places in the file in the order in which they are added.
 */

/* Prepares an empty image of `pages` pages in the file `fd`. */
void open_image(int fd, uint64_t pages);
/* Where the image has a page; NULL when it does not have it. */
void *find_page(uint64_t page);
/*
 * Gives a place to a page that has none, and returns its place. A pass adds pages in ascending order. When there are too many
 * ranges, pages of zeros fill the gaps between them.
 */
void *add_page(uint64_t page);
/* Begins the second pass. */
void begin_pass(void);
/* Writes the table, and returns the size of the file, in bytes. */
uint64_t close_image(void);

#endif
