/* The specification of an EXEC, parsed where it lies. */
#ifndef COPPICE_SPEC_H
#define COPPICE_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"

#define HOSTNAME_BYTES_MAX 64

struct spec {
	uint8_t *map; /* the bytes, then the pointers of argv and envp */
	size_t map_size;
	size_t size; /* bytes of the specification */
	size_t received;
	const char *hostname;
	const char *cwd;
	char **argv;
	char **envp;
};

/* Memory for a specification of `size` bytes. */
bool spec_open(struct spec *spec, size_t size, struct problem *problem);
/* Parses what was received in whole; the strings are ended in place. */
bool spec_parse(struct spec *spec, struct problem *problem);
void spec_close(struct spec *spec);

#endif
