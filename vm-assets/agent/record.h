/* One record of the index stream, and the buffered stream itself. */
#ifndef COPPICE_RECORD_H
#define COPPICE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* The fixed part; everything else is appended in the order of the format. */
struct record_head {
	uint8_t type;
	uint8_t flags;
	uint16_t xattr_count;
	uint32_t path_bytes;
	uint32_t target_bytes;
	uint32_t extent_count;
	const struct stat *status; /* NULL: all zero, as in a record of more extents */
};

/* Writes the beginning of the stream to `fd`. */
void record_stream_open(int fd);
bool record_stream_flush(void);

void record_begin(void);
/* False: the record would be longer than the host takes. */
bool record_append(const void *bytes, size_t size);
/* Room for `size` bytes that the caller fills, or NULL; record_take makes them part of the record. */
uint8_t *record_room(size_t size);
void record_take(size_t size);
/* Room that is left. */
size_t record_left(void);
/* The type of an entry by its status; w, a whiteout, for the device that overlayfs makes of one. */
uint8_t record_type(const struct stat *status);
/* Fills in the head and writes the record; false and errno. */
bool record_end(const struct record_head *head);

#endif
