/*
 * The bytes of a command's stream that were read and that the host has not granted again. The next host gets them once more,
 * so none is lost with a host.
 */
#ifndef COPPICE_KEEP_H
#define COPPICE_KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct keep {
	uint8_t *ring; /* has WINDOW_BYTES_INITIAL */
	size_t capacity; /* the part of the ring that is used; 0: nothing is kept */
	size_t touched; /* the part that may contain bytes */
	size_t start; /* index of the first kept byte */
	size_t size; /* kept bytes */
	size_t sent; /* those of them that this host was sent */
	uint64_t offset; /* of the first kept byte, in the stream */
};

/* At most two pieces of memory. */
struct spans {
	struct iovec at[2];
	int count;
};

void keep_open(struct keep *keep, uint8_t *ring);
/* Clears the ring and gives its memory back. */
void keep_close(struct keep *keep);
/* True when there is no room. */
bool keep_is_full(const struct keep *keep);
/* The room for at most `size` bytes; may enlarge the ring. keep_add must follow, with the number of bytes put there. */
struct spans keep_room(struct keep *keep, size_t size);
void keep_add(struct keep *keep, size_t size);
/* The number of bytes that this host was not sent. */
size_t keep_unsent(const struct keep *keep);
/* Copies the next `size` of them, which then count as sent. */
void keep_send(struct keep *keep, uint8_t *bytes, size_t size);
/* The first kept bytes are not needed again. Returns false when there are fewer. */
bool keep_grant(struct keep *keep, size_t size);
/* Another host is there, which was sent nothing. */
void keep_rewind(struct keep *keep);

#endif
