/* Releases the free space of the scratch. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "../bytes.h"
#include "guest.h"

/* Places in the superblock of ext4, in a descriptor of a block group, and their flags. */
#define SUPER_OFFSET 1024
#define SUPER_BYTES 1024
#define BLOCKS_COUNT_LOW 4
#define FIRST_DATA_BLOCK 20
#define BLOCK_SIZE_SHIFT 24
#define BLOCK_SIZE_4096 2
#define BLOCKS_PER_GROUP 32
#define INCOMPATIBLE_FEATURES 96
#define FEATURE_META_BG 0x10
#define FEATURE_64BIT 0x80
#define DESCRIPTOR_BYTES 254
#define BLOCKS_COUNT_HIGH 336
#define GROUP_FLAGS 18
#define GROUP_IS_UNUSED 0x2
#define BLOCK_BYTES 4096
/* Follows the block of the superblock. */
#define TABLE_OFFSET BLOCK_BYTES

struct groups {
	/* bytes of one group */
	uint64_t size;
	uint64_t count;
	unsigned descriptor_bytes;
};

/* Returns false for another layout than that of the scratch disks which the host makes. */
static bool groups_read(int disk, struct groups *groups)
{
	uint8_t super[SUPER_BYTES];

	if (pread(disk, super, sizeof super, SUPER_OFFSET) != sizeof super ||
	    get_u32(super + BLOCK_SIZE_SHIFT) != BLOCK_SIZE_4096)
		return false;
	uint32_t features = get_u32(super + INCOMPATIBLE_FEATURES);
	uint32_t per_group = get_u32(super + BLOCKS_PER_GROUP);
	groups->descriptor_bytes = features & FEATURE_64BIT ? get_u16(super + DESCRIPTOR_BYTES) : 32;
	if ((features & FEATURE_META_BG) != 0 || get_u32(super + FIRST_DATA_BLOCK) != 0 || per_group == 0 ||
	    groups->descriptor_bytes < 32 || BLOCK_BYTES % groups->descriptor_bytes != 0)
		return false;
	uint64_t blocks = (uint64_t)get_u32(super + BLOCKS_COUNT_HIGH) << 32 | get_u32(super + BLOCKS_COUNT_LOW);
	groups->size = (uint64_t)per_group * BLOCK_BYTES;
	groups->count = (blocks + per_group - 1) / per_group;
	return true;
}

static int trim_range(int mount, uint64_t start, uint64_t length, uint64_t *trimmed_bytes)
{
	struct fstrim_range range = {.start = start, .len = length};
	int result = ioctl(mount, (int)FITRIM, &range);

	*trimmed_bytes += result == 0 ? range.len : 0;
	return result;
}

/* Trims the groups that were used. Groups that never were have nothing to release, and most groups of most runs are such. */
static int trim_used(int mount, int disk, const struct groups *groups, uint64_t *trimmed_bytes)
{
	uint8_t table[BLOCK_BYTES];
	unsigned per_read = BLOCK_BYTES / groups->descriptor_bytes;

	for (uint64_t group = 0; group < groups->count; group++) {
		unsigned place = (unsigned)(group % per_read) * groups->descriptor_bytes;
		uint64_t offset = TABLE_OFFSET + group * groups->descriptor_bytes;
		if (place == 0 && pread(disk, table, sizeof table, (off_t)offset) != sizeof table)
			return trim_range(mount, 0, UINT64_MAX, trimmed_bytes);
		if ((get_u16(table + place + GROUP_FLAGS) & GROUP_IS_UNUSED) != 0)
			continue;
		if (trim_range(mount, group * groups->size, groups->size, trimmed_bytes) != 0)
			return -1;
	}
	return 0;
}

/*
 * The kernel would build the map of free blocks of every group to trim it: a third of the instructions of a captured run.
 * The page cache of the disk has the descriptors as the mounted file system has them.
 */
bool trim_scratch(const char *device, uint64_t *trimmed_bytes, struct problem *problem)
{
	struct groups groups;
	int mount = open("/s", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int disk = open(device, O_RDONLY | O_CLOEXEC);
	int result = -1;

	*trimmed_bytes = 0;
	if (mount >= 0)
		result = disk >= 0 && groups_read(disk, &groups) ? trim_used(mount, disk, &groups, trimmed_bytes)
								 : trim_range(mount, 0, UINT64_MAX, trimmed_bytes);
	int error = errno;
	close(disk);
	close(mount);
	/* A disk that cannot release space stays larger, which is not an error. */
	return result == 0 || error == EOPNOTSUPP ? true : problem_set(problem, error, "trim of the scratch");
}
