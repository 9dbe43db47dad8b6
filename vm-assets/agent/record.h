/* Records of the index stream, and the buffered stream. */
#ifndef COPPICE_RECORD_H
#define COPPICE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* The fixed part. The other parts are appended in the order of the format. */
struct record_head {
	uint8_t type;
	uint8_t flags;
	uint16_t xattr_count;
	uint32_t path_bytes;
	uint32_t target_bytes;
	uint32_t extent_count;
	const struct stat *status; /* NULL: all zero, as in a record of more extents */
};

/* Starts the index stream on `fd`. */
void record_stream_open(int fd);
/* Starts a stream of other bytes, which record_stream_put adds. */
void record_stream_start(int fd);
bool record_stream_put(const void *bytes, size_t size);
bool record_stream_flush(void);

void record_begin(void);
/* Returns false when the record would exceed the host's limit. */
bool record_append(const void *bytes, size_t size);
/* Space for `size` bytes, which the caller fills and record_take adds to the record; NULL when there is none. */
uint8_t *record_room(size_t size);
void record_take(size_t size);
/* Remaining space, in bytes. */
size_t record_left(void);
/* Type of an entry, as a letter; 'w' for the device that overlayfs uses as a whiteout. */
uint8_t record_type(const struct stat *status);
/* Fills in the fixed part and writes the record. Returns false and errno on failure. */
bool record_end(const struct record_head *head);

#endif
