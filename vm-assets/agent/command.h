#ifndef COPPICE_COMMAND_H
#define COPPICE_COMMAND_H

#include <stdbool.h>
#include <sys/types.h>

#include "spec.h"

/* Who a command is. */
struct identity {
	uid_t uid;
	gid_t gid;
	bool terminal; /* standard input is its controlling terminal */
};

/* A session of its own, with its terminal: from here on signals for the process group reach the command. */
void command_begin(const struct identity *identity);
/* Becomes the command; or writes why not to standard error and exits 127 (not found) or 126. */
_Noreturn void command_run(const struct spec *spec, const struct identity *identity);

#endif
