/* The specification of an EXEC, received by the agent and parsed, where it lies, by the reaper. */
#ifndef COPPICE_SPEC_H
#define COPPICE_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"

#define HOSTNAME_BYTES_MAX 64

struct spec {
	uint8_t *map;
	size_t size; /* bytes of the specification */
	size_t received;
	const char *hostname;
	const char *cwd;
	char **argv;
	char **envp;
};

/* Memory for a specification of `size` bytes, as far as all that are being received leave some. */
bool spec_open(struct spec *spec, size_t size, struct problem *problem);
/* Parses what was received in whole. The strings are ended in place; memory for argv and envp is added. */
bool spec_parse(struct spec *spec, struct problem *problem);
void spec_close(struct spec *spec);

#endif
