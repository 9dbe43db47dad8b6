/* Lists the names in a directory, without allocating memory. */
#ifndef COPPICE_LISTING_H
#define COPPICE_LISTING_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that are read at a time. A tree walk has one listing for each level, so no directory is read twice. */
#define LISTING_BYTES 4096

struct listing {
	size_t at;
	size_t end;
	uint8_t entries[LISTING_BYTES];
};

/* Discards the bytes that were read. The caller sets the position of the descriptor. */
void listing_begin(struct listing *listing);
/* The next name, except "." and ".."; NULL at the end, or with errno set. Valid until the next call. */
const char *listing_next(struct listing *listing, int fd);

#endif
