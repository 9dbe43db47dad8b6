#include "record.h"

#include <errno.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "bytes.h"
#include "protocol.h"

#define LENGTH_BYTES 4
/* Capacity of a pipe: large writes make large frames. */
#define STREAM_BYTES 65536

_Static_assert(INDEX_RECORD_FIXED_BYTES == 1 + 1 + 2 + 4 * 5 + 8 * 3 + 4 * 6, "fields of a record");

static uint8_t record[LENGTH_BYTES + INDEX_RECORD_BYTES_MAX];
static size_t record_size;
static uint8_t stream[STREAM_BYTES];
static size_t stream_size;
static int stream_fd;

static bool write_whole(const uint8_t *bytes, size_t size)
{
	while (size > 0) {
		ssize_t count = write(stream_fd, bytes, size);
		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return false;
		bytes += count;
		size -= (size_t)count;
	}
	return true;
}

bool record_stream_flush(void)
{
	bool done = write_whole(stream, stream_size);
	stream_size = 0;
	return done;
}

void record_stream_start(int fd)
{
	stream_fd = fd;
	stream_size = 0;
}

bool record_stream_put(const void *bytes, size_t size)
{
	if (size > sizeof stream - stream_size && !record_stream_flush())
		return false;
	if (size > sizeof stream)
		return write_whole(bytes, size);
	memcpy(stream + stream_size, bytes, size);
	stream_size += size;
	return true;
}

void record_stream_open(int fd)
{
	record_stream_start(fd);
	put_u32(stream, INDEX_MAGIC);
	put_u32(stream + 4, INDEX_VERSION);
	stream_size = 8;
}

void record_begin(void)
{
	record_size = LENGTH_BYTES + INDEX_RECORD_FIXED_BYTES;
}

size_t record_left(void)
{
	return sizeof record - record_size;
}

uint8_t *record_room(size_t size)
{
	return size <= record_left() ? record + record_size : NULL;
}

void record_take(size_t size)
{
	record_size += size;
}

bool record_append(const void *bytes, size_t size)
{
	uint8_t *room = record_room(size);
	if (room == NULL)
		return false;
	memcpy(room, bytes, size);
	record_take(size);
	return true;
}

static void put_status(uint8_t *at, const struct stat *status)
{
	put_u32(at + 4, status->st_mode & 07777);
	put_u32(at + 8, status->st_uid);
	put_u32(at + 12, status->st_gid);
	put_u32(at + 16, (uint32_t)status->st_nlink);
	put_u32(at + 20, (uint32_t)status->st_mtim.tv_nsec);
	put_u64(at + 24, status->st_ino);
	put_u64(at + 32, (uint64_t)status->st_size);
	put_u64(at + 40, (uint64_t)status->st_mtim.tv_sec);
	if (S_ISCHR(status->st_mode) || S_ISBLK(status->st_mode)) {
		put_u32(at + 48, major(status->st_rdev));
		put_u32(at + 52, minor(status->st_rdev));
	}
}

bool record_end(const struct record_head *head)
{
	uint8_t *at = record + LENGTH_BYTES;
	put_u32(record, (uint32_t)(record_size - LENGTH_BYTES));
	memset(at, 0, INDEX_RECORD_FIXED_BYTES);
	at[0] = head->type;
	at[1] = head->flags;
	put_u16(at + 2, head->xattr_count);
	if (head->status != NULL)
		put_status(at, head->status);
	put_u32(at + 56, head->path_bytes);
	put_u32(at + 60, head->target_bytes);
	put_u32(at + 64, head->extent_count);
	return record_stream_put(record, record_size);
}

uint8_t record_type(const struct stat *status)
{
	switch (status->st_mode & S_IFMT) {
	case S_IFDIR:
		return 'd';
	case S_IFLNK:
		return 'l';
	case S_IFBLK:
		return 'b';
	case S_IFCHR:
		return status->st_rdev == 0 ? 'w' : 'c';
	case S_IFIFO:
		return 'p';
	case S_IFSOCK:
		return 's';
	default:
		return 'f';
	}
}
