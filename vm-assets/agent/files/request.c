#include "request.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "../bytes.h"
#include "../protocol.h"

#define STRINGS_COUNT_MIN 2 /* the user and the path */
#define UNLIMITED UINT32_MAX
#define MAKES (FILE_FLAG_PARENTS | FILE_FLAG_EXCLUSIVE | FILE_FLAG_MODE | FILE_FLAG_OWNER)

/* What a request of each operation can have. */
static const struct {
	unsigned flags;
	uint32_t strings_min; /* in addition to the user and the path */
	uint32_t strings_max;
	bool pairs;
} rules[] = {
	[FILE_OP_STAT] = {.flags = FILE_FLAG_FOLLOW},
	[FILE_OP_LIST] = {.flags = FILE_FLAG_FOLLOW | FILE_FLAG_ATTRIBUTES},
	[FILE_OP_READ] = {.flags = FILE_FLAG_FOLLOW},
	[FILE_OP_WRITE] = {.flags = MAKES | FILE_FLAG_ATOMIC | FILE_FLAG_APPEND, .strings_max = UNLIMITED, .pairs = true},
	[FILE_OP_DIRECTORY] = {.flags = MAKES},
	[FILE_OP_REMOVE] = {.flags = FILE_FLAG_RECURSIVE},
	[FILE_OP_MOVE] = {.flags = FILE_FLAG_PARENTS | FILE_FLAG_REPLACE | FILE_FLAG_OWNER, .strings_min = 1, .strings_max = 1},
	[FILE_OP_ATTRIBUTES] = {.flags = FILE_FLAG_FOLLOW | FILE_FLAG_MODE | FILE_FLAG_OWNER,
		.strings_max = UNLIMITED, .pairs = true},
	[FILE_OP_JOIN] = {.flags = MAKES, .strings_min = 1, .strings_max = UNLIMITED},
	[FILE_OP_WATCH] = {.flags = FILE_FLAG_FOLLOW | FILE_FLAG_RECURSIVE},
	[FILE_OP_USER] = {0},
};

uint32_t request_target(const struct frame *frame)
{
	return get_u32(frame->payload);
}

unsigned request_op(const struct frame *frame)
{
	return get_u16(frame->payload + 4);
}

bool request_is_whole(const struct frame *frame)
{
	const uint8_t *at = frame->payload + FILE_OPEN_FIXED_BYTES;
	size_t left = frame->length - FILE_OPEN_FIXED_BYTES;
	unsigned op = request_op(frame);
	uint32_t count = get_u16(at - 4);
	if (op == 0 || op >= sizeof rules / sizeof rules[0] || get_u16(at - 2) != 0)
		return false;
	if ((get_u16(frame->payload + 6) & ~rules[op].flags) != 0 || count < STRINGS_COUNT_MIN + rules[op].strings_min)
		return false;
	if (count - STRINGS_COUNT_MIN > rules[op].strings_max || (rules[op].pairs && count % 2 != 0))
		return false;
	for (uint32_t i = 0; i < count; i++) {
		size_t length = left < 2 ? 0 : get_u16(at);
		length = length == FILE_STRING_NONE ? 0 : length;
		if (left < 2 + length)
			return false;
		at += 2 + length;
		left -= 2 + length;
	}
	return left == 0;
}

bool request_take(struct request *request, struct string *string)
{
	if (request->left == 0)
		return false;
	request->left--;
	uint8_t *at = request->next;
	size_t length = get_u16(at);
	*string = (struct string){NULL, 0};
	request->next += 2;
	if (length == FILE_STRING_NONE)
		return true;
	request->next += length;
	/* Moved over its own length, so that the NUL after it has a place. */
	memmove(at, at + 2, length);
	at[length] = '\0';
	*string = (struct string){(char *)at, length};
	return true;
}

static bool take_text(struct request *request, const char **text, struct problem *problem)
{
	struct string string;
	if (!request_take(request, &string) || string.bytes == NULL || memchr(string.bytes, 0, string.size) != NULL)
		return problem_set(problem, EINVAL, "string with a NUL, or none");
	*text = string.bytes;
	return true;
}

bool request_take_path(struct request *request, const char **path, struct problem *problem)
{
	if (!take_text(request, path, problem))
		return false;
	if ((*path)[0] != '/')
		return problem_set(problem, EINVAL, "path that is not absolute");
	return strlen(*path) < PATH_MAX || problem_set(problem, ENAMETOOLONG, "path of %zu bytes", strlen(*path));
}

bool request_parse(struct request *request, uint8_t *payload, struct problem *problem)
{
	*request = (struct request){
		.target = get_u32(payload),
		.op = get_u16(payload + 4),
		.flags = get_u16(payload + 6),
		.uid = get_u32(payload + 8),
		.gid = get_u32(payload + 12),
		.mode = get_u32(payload + 16) & 07777,
		.owner_uid = get_u32(payload + 20),
		.owner_gid = get_u32(payload + 24),
		.depth = get_u32(payload + 28),
		.offset = get_u64(payload + 32),
		.length = get_u64(payload + 40),
		.left = get_u16(payload + 48),
		.next = payload + FILE_OPEN_FIXED_BYTES,
	};
	if (!take_text(request, &request->user, problem) || !request_take_path(request, &request->path, problem))
		return false;
	/* In the system calls this number means "no change". */
	if (request->uid == UINT32_MAX || request->gid == UINT32_MAX)
		return problem_set(problem, EINVAL, "user %u, group %u", request->uid, request->gid);
	if (request->user[0] != '\0' && (request->uid != 0 || request->gid != 0))
		return problem_set(problem, EINVAL, "user %.200s with numbers", request->user);
	if (request->depth > FILE_DEPTH_MAX)
		return problem_set(problem, EINVAL, "depth of %u", request->depth);
	return request->offset <= INT64_MAX || problem_set(problem, EINVAL, "offset");
}
