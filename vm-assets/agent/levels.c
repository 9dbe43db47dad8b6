#include "levels.h"

#include <string.h>

/* Only the walking process touches them, and only as deep as the tree is. */
struct level levels[LEVELS_DEPTH_MAX + 1];
struct listing listings[LEVELS_DEPTH_MAX + 1];
char levels_path[LEVELS_PATH_BYTES_MAX];

bool levels_set_path(const struct level *level, const char *name)
{
	size_t at = level->path_bytes;
	size_t length = strlen(name);
	if (at + 1 + length + 1 > sizeof levels_path)
		return false;
	if (at > 0)
		levels_path[at++] = '/';
	memcpy(levels_path + at, name, length + 1);
	return true;
}
