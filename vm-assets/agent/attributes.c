#include "attributes.h"

#include <errno.h>
#include <linux/limits.h>
#include <string.h>
#include <sys/xattr.h>

#include "bytes.h"
#include "record.h"

#define OVERLAY "trusted.overlay."
/* How newer kernels store an overlay attribute of a file that lies in an overlay itself: with a doubled prefix. */
#define ESCAPED OVERLAY "overlay."

#define HEAD_BYTES (2 + 2 + 4)

static char names[XATTR_LIST_MAX];
/* The kernel allocates and zeroes as much as it is offered. This is enough for nearly all files; a second call gets the rest. */
#define NAMES_BYTES 512

static bool has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static ssize_t get(int fd, const char *path, const char *name, void *value, size_t size)
{
	return fd >= 0 ? fgetxattr(fd, name, value, size) : lgetxattr(path, name, value, size);
}

static bool append(int fd, const char *path, const char *name, struct problem *problem)
{
	char shown[XATTR_NAME_MAX + 1];
	size_t skip = has_prefix(name, ESCAPED) ? strlen(ESCAPED) : 0;
	size_t prefix = skip > 0 ? strlen(OVERLAY) : 0;
	size_t rest = strlen(name + skip);
	if (prefix + rest > XATTR_NAME_MAX)
		return problem_set(problem, ENAMETOOLONG, "attribute");
	memcpy(shown, OVERLAY, prefix);
	memcpy(shown + prefix, name + skip, rest);
	uint8_t head[HEAD_BYTES] = {0};
	put_u16(head, (uint16_t)(prefix + rest));
	/* The value is read directly into the record, and its length is filled in afterwards. */
	uint8_t *at = record_room(HEAD_BYTES);
	if (at == NULL || !record_append(head, sizeof head) || !record_append(shown, prefix + rest))
		return problem_set(problem, E2BIG, "attributes");
	size_t left = record_left();
	size_t most = left < XATTR_SIZE_MAX ? left : XATTR_SIZE_MAX;
	ssize_t size = most == 0 ? -1 : get(fd, path, name, record_room(most), most);
	if (size < 0)
		return problem_set(problem, most < XATTR_SIZE_MAX ? E2BIG : errno, "attribute %s", name);
	put_u32(at + 4, (uint32_t)size);
	record_take((size_t)size);
	return true;
}

static ssize_t list(int fd, const char *path, size_t room)
{
	return fd >= 0 ? flistxattr(fd, names, room) : llistxattr(path, names, room);
}

bool attributes_append(int fd, const char *path, uint16_t *count, bool *opaque, struct problem *problem)
{
	*count = 0;
	*opaque = false;
	ssize_t size = list(fd, path, NAMES_BYTES);
	if (size < 0 && errno == ERANGE)
		size = list(fd, path, sizeof names);
	if (size < 0 && (errno == ENOTSUP || errno == EPERM))
		return true;
	if (size < 0)
		return problem_set(problem, errno, "attributes");
	for (const char *name = names; name < names + size; name += strlen(name) + 1) {
		if (has_prefix(name, OVERLAY) && !has_prefix(name, ESCAPED)) {
			char value[2];
			if (strcmp(name, OVERLAY "opaque") == 0 && get(fd, path, name, value, sizeof value) == 1 && value[0] == 'y')
				*opaque = true;
			continue;
		}
		if (!append(fd, path, name, problem))
			return false;
		(*count)++;
	}
	return true;
}
