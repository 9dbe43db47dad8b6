/* The specification of an EXEC. The agent receives it, and the reaper parses it in place. */
#ifndef COPPICE_SPEC_H
#define COPPICE_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"

#define HOSTNAME_BYTES_MAX 64
/* Variables that the reaper can add. */
#define SPEC_VARIABLES_COUNT 4

struct spec {
	uint8_t *map;
	size_t size; /* size of the specification, in bytes */
	size_t received;
	const char *hostname;
	const char *user; /* empty: the identity of the request */
	const char *cwd;
	char **argv;
	char **envp; /* with room for SPEC_VARIABLES_COUNT more */
	size_t envc;
};

/* Maps memory for a specification of `size` bytes, within the limit of all that are being received. */
bool spec_open(struct spec *spec, size_t size, struct problem *problem);
/* Reads the hostname of a complete specification that was not parsed; an empty string when it is malformed. */
void spec_read_hostname(const struct spec *spec, char hostname[HOSTNAME_BYTES_MAX + 1]);
/* Parses a complete specification. Strings are terminated in place; argv and envp get memory of their own. */
bool spec_parse(struct spec *spec, struct problem *problem);
/* Adds a variable, NAME=VALUE, to a parsed specification unless it has one of that name. */
void spec_add_variable(struct spec *spec, char *variable);
void spec_close(struct spec *spec);

#endif
