#include "extents.h"

#include <errno.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bytes.h"
#include "record.h"

/* A batch takes 6 KiB of a record, which leaves room for any path and for attributes of a file system block. */
#define BATCH_COUNT 256
#define EXTENT_BYTES 24

#define FLAGS_REFUSED                                                                                         \
	(FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DATA_ENCRYPTED | \
		FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_DATA_TAIL)

static union {
	struct fiemap map;
	uint8_t bytes[sizeof(struct fiemap) + BATCH_COUNT * sizeof(struct fiemap_extent)];
} batch;

bool extents_append_one(uint64_t logical, uint64_t physical, uint64_t length)
{
	uint8_t *room = record_room(EXTENT_BYTES);
	if (room == NULL)
		return false;
	put_u64(room, logical);
	put_u64(room + 8, physical);
	put_u64(room + 16, length);
	record_take(EXTENT_BYTES);
	return true;
}

static bool append(const struct fiemap_extent *extent, uint64_t size, uint32_t *count, struct problem *problem)
{
	uint64_t length = extent->fe_length;
	/* Unwritten blocks read as zeros, like holes. Blocks after the end of the file contain nothing of it. */
	if (extent->fe_logical >= size || length == 0 || (extent->fe_flags & FIEMAP_EXTENT_UNWRITTEN) != 0)
		return true;
	if ((extent->fe_flags & FLAGS_REFUSED) != 0)
		return problem_set(problem, EOPNOTSUPP, "extent with flags 0x%x", extent->fe_flags);
	if (length > size - extent->fe_logical)
		length = size - extent->fe_logical;
	if (!extents_append_one(extent->fe_logical, extent->fe_physical, length))
		return problem_set(problem, E2BIG, "extents");
	(*count)++;
	return true;
}

bool extents_append(struct extents *extents, uint32_t *count, struct problem *problem)
{
	memset(&batch.map, 0, sizeof batch.map);
	batch.map.fm_start = extents->next;
	batch.map.fm_length = extents->size - extents->next;
	batch.map.fm_flags = FIEMAP_FLAG_SYNC;
	batch.map.fm_extent_count = BATCH_COUNT;
	/* The raw system call, because musl and glibc declare different types for the request. */
	if (syscall(SYS_ioctl, extents->fd, FS_IOC_FIEMAP, &batch.map) != 0)
		return problem_set(problem, errno, "extents");
	*count = 0;
	/* An empty answer means that the rest of the file is a hole. */
	extents->done = batch.map.fm_mapped_extents == 0;
	for (uint32_t i = 0; i < batch.map.fm_mapped_extents && i < BATCH_COUNT; i++) {
		const struct fiemap_extent *extent = &batch.map.fm_extents[i];
		uint64_t end = extent->fe_logical + extent->fe_length;
		if (!append(extent, extents->size, count, problem))
			return false;
		/* Stop also when an answer makes no progress. */
		if (end <= extents->next || end >= extents->size || (extent->fe_flags & FIEMAP_EXTENT_LAST) != 0)
			extents->done = true;
		extents->next = end;
	}
	return true;
}
