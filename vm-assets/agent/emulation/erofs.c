#include "erofs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../bytes.h"

#define BLOCK_BITS 12
#define BLOCK_BYTES (1U << BLOCK_BITS)
#define SUPER_OFFSET 1024
#define SUPER_BYTES 128
/* Unit of inode numbers. */
#define SLOT_BYTES 32
#define COMPACT_BYTES 32
#define EXTENDED_BYTES 64
#define ATTRIBUTES_HEAD_BYTES 12
#define ENTRY_BYTES 12
/* Layouts of a file's content: contiguous, or with its last block after the inode. */
#define LAYOUT_PLAIN 0
#define LAYOUT_INLINE 2

/* A direct-mapped cache. The blocks of a directory and of its inodes are close together, so they rarely collide. */
#define CACHE_COUNT 256

static struct {
	uint64_t tag[CACHE_COUNT]; /* block number plus one */
	uint8_t bytes[CACHE_COUNT][BLOCK_BYTES];
} cache;

static struct {
	int fd;
	uint64_t root;
	uint64_t inodes_start;
	uint64_t built_s;
	uint32_t built_ns;
} disk;

static bool malformed(void)
{
	errno = EUCLEAN;
	return false;
}

/* A block, valid until the next call; NULL and errno on failure. */
static const uint8_t *block_at(uint64_t number)
{
	uint8_t *bytes = cache.bytes[number % CACHE_COUNT];
	uint64_t *tag = &cache.tag[number % CACHE_COUNT];
	if (*tag == number + 1)
		return bytes;
	*tag = 0;
	ssize_t count = 0;
	do
		if (number <= INT64_MAX >> BLOCK_BITS)
			count = pread(disk.fd, bytes, BLOCK_BYTES, (off_t)(number << BLOCK_BITS));
	while (count < 0 && errno == EINTR);
	if (count == BLOCK_BYTES) {
		*tag = number + 1;
		return bytes;
	}
	if (count >= 0)
		errno = EUCLEAN;
	return NULL;
}

static bool copy(uint64_t offset, uint8_t *to, size_t size)
{
	while (size > 0) {
		const uint8_t *block = block_at(offset >> BLOCK_BITS);
		size_t at = offset % BLOCK_BYTES;
		size_t part = size < BLOCK_BYTES - at ? size : BLOCK_BYTES - at;
		if (block == NULL)
			return false;
		memcpy(to, block + at, part);
		to += part;
		offset += part;
		size -= part;
	}
	return true;
}

bool erofs_open(int fd)
{
	uint8_t super[SUPER_BYTES];
	disk.fd = fd;
	memset(cache.tag, 0, sizeof cache.tag);
	if (fd < 0 || !copy(SUPER_OFFSET, super, sizeof super) || get_u32(super) != EROFS_SUPER_MAGIC_V1)
		return false;
	disk.root = get_u16(super + 14);
	disk.built_s = get_u64(super + 24);
	disk.built_ns = get_u32(super + 32);
	disk.inodes_start = (uint64_t)get_u32(super + 40) << BLOCK_BITS;
	/* Features that only the kernel can handle, such as compression, chunks, other disks and fragments. */
	return super[12] == BLOCK_BITS && get_u32(super + 80) == 0;
}

uint64_t erofs_root(void)
{
	return disk.root;
}

static void set_device(struct stat *status, uint32_t device)
{
	if (S_ISCHR(status->st_mode) || S_ISBLK(status->st_mode))
		status->st_rdev = makedev((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
}

static void parse_compact(const uint8_t *at, struct stat *status)
{
	status->st_nlink = get_u16(at + 6);
	status->st_size = get_u32(at + 8);
	status->st_uid = get_u16(at + 24);
	status->st_gid = get_u16(at + 26);
	status->st_mtim.tv_sec = (time_t)disk.built_s;
	status->st_mtim.tv_nsec = disk.built_ns;
}

static void parse_extended(const uint8_t *at, struct stat *status)
{
	status->st_size = (off_t)get_u64(at + 8);
	status->st_uid = get_u32(at + 24);
	status->st_gid = get_u32(at + 28);
	status->st_mtim.tv_sec = (time_t)get_u64(at + 32);
	status->st_mtim.tv_nsec = get_u32(at + 40);
	status->st_nlink = get_u32(at + 44);
}

bool erofs_inode(uint64_t number, struct erofs_inode *inode)
{
	uint8_t bytes[EXTENDED_BYTES];
	if (number > (uint64_t)INT64_MAX / SLOT_BYTES)
		return malformed();
	uint64_t offset = disk.inodes_start + number * SLOT_BYTES;
	if (!copy(offset, bytes, COMPACT_BYTES))
		return false;
	unsigned format = get_u16(bytes);
	bool extended = (format & 1) != 0;
	unsigned layout = format >> 1;
	uint64_t size = extended ? EXTENDED_BYTES : COMPACT_BYTES;
	if (extended && !copy(offset + COMPACT_BYTES, bytes + COMPACT_BYTES, EXTENDED_BYTES - COMPACT_BYTES))
		return false;
	uint16_t attributes = get_u16(bytes + 2);
	memset(&inode->status, 0, sizeof inode->status);
	inode->status.st_ino = number;
	inode->status.st_mode = get_u16(bytes + 4);
	if (extended)
		parse_extended(bytes, &inode->status);
	else
		parse_compact(bytes, &inode->status);
	set_device(&inode->status, get_u32(bytes + 16));
	inode->has_attributes = attributes > 0;
	inode->is_plain = layout == LAYOUT_PLAIN;
	inode->start = (uint64_t)get_u32(bytes + 16) << BLOCK_BITS;
	inode->tail = offset + size;
	if (attributes > 0)
		inode->tail += ATTRIBUTES_HEAD_BYTES + 4 * (attributes - 1U);
	return (layout == LAYOUT_PLAIN || layout == LAYOUT_INLINE) && inode->status.st_size >= 0 ? true : malformed();
}

ssize_t erofs_read(const struct erofs_inode *inode, uint64_t offset, const uint8_t **bytes)
{
	uint64_t size = (uint64_t)inode->status.st_size;
	uint64_t left = offset < size ? size - offset : 0;
	bool is_tail = !inode->is_plain && left <= BLOCK_BYTES;
	uint64_t position = is_tail ? inode->tail : inode->start + offset;
	if (left > BLOCK_BYTES)
		left = BLOCK_BYTES;
	/* A tail never crosses a block boundary. */
	if (left > BLOCK_BYTES - position % BLOCK_BYTES) {
		errno = EUCLEAN;
		return -1;
	}
	const uint8_t *block = left == 0 ? cache.bytes[0] : block_at(position >> BLOCK_BITS);
	if (block == NULL)
		return -1;
	*bytes = block + position % BLOCK_BYTES;
	return (ssize_t)left;
}

/* Parses entry `number` of a directory's block. */
static bool parse_entry(const uint8_t *block, size_t size, unsigned number, struct erofs_entry *entry)
{
	const uint8_t *at = block + number * ENTRY_BYTES;
	size_t count = get_u16(block + 8) / ENTRY_BYTES;
	size_t start = get_u16(at + 8);
	size_t end = number + 1 < count ? get_u16(at + ENTRY_BYTES + 8) : size;
	if (start > end || end > size)
		return malformed();
	size_t length = number + 1 < count ? end - start : strnlen((const char *)block + start, end - start);
	if (length == 0 || length > EROFS_NAME_BYTES_MAX || memchr(block + start, '/', length) != NULL)
		return malformed();
	entry->inode = get_u64(at);
	memcpy(entry->name, block + start, length);
	entry->name[length] = '\0';
	return true;
}

/* Requests the inodes of a directory's block, so that the disk reads them while earlier ones are walked. */
static void prefetch(const uint8_t *block, size_t count)
{
	uint64_t last = 0;
	for (size_t number = 0; number < count; number++) {
		uint64_t inode = get_u64(block + number * ENTRY_BYTES);
		uint64_t position = (disk.inodes_start + inode * SLOT_BYTES) >> BLOCK_BITS;
		if (position == last || cache.tag[position % CACHE_COUNT] == position + 1)
			continue;
		posix_fadvise(disk.fd, (off_t)(position << BLOCK_BITS), BLOCK_BYTES, POSIX_FADV_WILLNEED);
		last = position;
	}
}

bool erofs_next(struct erofs_directory *directory, struct erofs_entry *entry)
{
	for (;;) {
		const uint8_t *block;
		ssize_t size = erofs_read(&directory->inode, directory->offset, &block);
		if (size == 0)
			errno = 0;
		if (size <= 0)
			return false;
		/* The first name starts where the entries end. */
		size_t entries_bytes = size < ENTRY_BYTES ? 0 : get_u16(block + 8);
		if (entries_bytes < ENTRY_BYTES || entries_bytes > (size_t)size)
			return malformed();
		if (directory->entry >= entries_bytes / ENTRY_BYTES) {
			directory->entry = 0;
			directory->offset += BLOCK_BYTES;
			continue;
		}
		if (directory->entry == 0)
			prefetch(block, entries_bytes / ENTRY_BYTES);
		if (!parse_entry(block, (size_t)size, directory->entry++, entry))
			return false;
		if (strcmp(entry->name, ".") != 0 && strcmp(entry->name, "..") != 0)
			return true;
	}
}
