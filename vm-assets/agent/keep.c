#include "keep.h"

#include <string.h>

#include "budget.h"
#include "rings.h"

/* A ring with less room grows, because it would cost a frame for a few bytes. */
#define ROOM_BYTES_MIN 4096
#define GROWTH_BYTES (WINDOW_BYTES_INITIAL - KEEP_BYTES_MIN)
_Static_assert(GROWTH_BYTES >= KEEP_BYTES_MIN, "a part of a full ring moves to the new end without an overlap");

/* The growth of all rings now. */
static size_t grown;

void keep_open(struct keep *keep, uint8_t *ring)
{
	*keep = (struct keep){.ring = ring, .capacity = KEEP_BYTES_MIN};
}

void keep_close(struct keep *keep)
{
	if (keep->touched > 0)
		rings_forget(keep->ring, keep->touched);
	if (keep->capacity > KEEP_BYTES_MIN)
		grown -= GROWTH_BYTES;
	*keep = (struct keep){0};
}

static bool can_grow(const struct keep *keep)
{
	return keep->capacity == KEEP_BYTES_MIN && GROWTH_BYTES <= KEEPS_GROWTH_BYTES_MAX - grown;
}

bool keep_is_full(const struct keep *keep)
{
	return keep->size == keep->capacity && !can_grow(keep);
}

/* The bytes from `start` to the end of the small ring move to the end of the large one. */
static void grow(struct keep *keep)
{
	size_t moved = keep->start + keep->size > keep->capacity ? keep->capacity - keep->start : 0;
	grown += GROWTH_BYTES;
	keep->capacity += GROWTH_BYTES;
	if (moved == 0)
		return;
	memcpy(keep->ring + keep->capacity - moved, keep->ring + keep->start, moved);
	keep->start = keep->capacity - moved;
	keep->touched = keep->capacity;
}

struct spans keep_room(struct keep *keep, size_t size)
{
	if (keep->capacity - keep->size < ROOM_BYTES_MIN && can_grow(keep))
		grow(keep);
	if (size > keep->capacity - keep->size)
		size = keep->capacity - keep->size;
	size_t end = keep->start + keep->size;
	if (end >= keep->capacity)
		end -= keep->capacity;
	size_t first = size < keep->capacity - end ? size : keep->capacity - end;
	return (struct spans){
		.at = {{.iov_base = keep->ring + end, .iov_len = first}, {.iov_base = keep->ring, .iov_len = size - first}},
		.count = size == 0 ? 0 : size > first ? 2 : 1,
	};
}

void keep_add(struct keep *keep, size_t size)
{
	keep->size += size;
	size_t end = keep->start + keep->size;
	if (end > keep->capacity)
		end = keep->capacity;
	if (keep->touched < end)
		keep->touched = end;
}

size_t keep_unsent(const struct keep *keep)
{
	return keep->size - keep->sent;
}

void keep_send(struct keep *keep, uint8_t *bytes, size_t size)
{
	size_t at = keep->start + keep->sent;
	if (at >= keep->capacity)
		at -= keep->capacity;
	size_t first = size < keep->capacity - at ? size : keep->capacity - at;
	memcpy(bytes, keep->ring + at, first);
	memcpy(bytes + first, keep->ring, size - first);
	keep->sent += size;
}

bool keep_grant(struct keep *keep, size_t size)
{
	if (size > keep->size)
		return false;
	keep->offset += size;
	keep->size -= size;
	keep->sent -= keep->sent < size ? keep->sent : size;
	keep->start += size;
	if (keep->start >= keep->capacity)
		keep->start -= keep->capacity;
	/* A ring that is rarely full then uses few pages. */
	if (keep->size == 0)
		keep->start = 0;
	return true;
}

void keep_rewind(struct keep *keep)
{
	keep->sent = 0;
}
