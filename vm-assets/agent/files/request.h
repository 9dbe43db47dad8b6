/* The request of a FILE_OPEN. The agent checks its structure, and the visitor parses it in a copy of its own. */
#ifndef COPPICE_FILE_REQUEST_H
#define COPPICE_FILE_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../frame.h"
#include "../problem.h"

/* A string of a request, terminated by a NUL. */
struct string {
	char *bytes; /* NULL: none */
	size_t size;
};

struct request {
	uint32_t target;
	unsigned op;
	unsigned flags;
	uint32_t uid;
	uint32_t gid;
	uint32_t mode;
	uint32_t owner_uid;
	uint32_t owner_gid;
	uint32_t depth;
	uint64_t offset;
	uint64_t length;
	int input; /* descriptor with the content for a write */
	const char *user;
	const char *path;
	uint8_t *next; /* strings that were not taken */
	unsigned left;
};

/* The session whose files are requested, and the operation. */
uint32_t request_target(const struct frame *frame);
unsigned request_op(const struct frame *frame);
/* True when the frame has an operation with flags that it can have, and as many strings as the operation needs. */
bool request_is_whole(const struct frame *frame);
/* Parses a copy of a whole frame's payload in place. */
bool request_parse(struct request *request, uint8_t *payload, struct problem *problem);
/* Takes the next string of the operation. Returns false when none is left. */
bool request_take(struct request *request, struct string *string);
/* The same for a path, which must be absolute and without NUL. */
bool request_take_path(struct request *request, const char **path, struct problem *problem);

#endif
