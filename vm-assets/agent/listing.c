#include "listing.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bytes.h"

/* Fields of the kernel's struct linux_dirent64. */
#define DIRENT_LENGTH_OFFSET 16
#define DIRENT_NAME_OFFSET 19

void listing_begin(struct listing *listing)
{
	listing->at = 0;
	listing->end = 0;
}

const char *listing_next(struct listing *listing, int fd)
{
	for (;;) {
		if (listing->at >= listing->end) {
			long count = syscall(SYS_getdents64, fd, listing->entries, sizeof listing->entries);
			if (count <= 0) {
				errno = count < 0 ? errno : 0;
				return NULL;
			}
			listing->at = 0;
			listing->end = (size_t)count;
		}
		const uint8_t *entry = listing->entries + listing->at;
		const char *name = (const char *)entry + DIRENT_NAME_OFFSET;
		listing->at += get_u16(entry + DIRENT_LENGTH_OFFSET);
		if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
			return name;
	}
}
