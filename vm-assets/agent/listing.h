/* The names in a directory, without memory of its own to allocate. */
#ifndef COPPICE_LISTING_H
#define COPPICE_LISTING_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that are read at once; whoever goes down a tree keeps a listing a level, so no directory is read twice. */
#define LISTING_BYTES 4096

struct listing {
	size_t at;
	size_t end;
	uint8_t entries[LISTING_BYTES];
};

/* Forgets what was read; the descriptor's position is the caller's. */
void listing_begin(struct listing *listing);
/* The next name but "." and ".."; NULL at the end, or with errno set. Good until the next call. */
const char *listing_next(struct listing *listing, int fd);

#endif
