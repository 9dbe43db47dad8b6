#ifndef COPPICE_COMMAND_H
#define COPPICE_COMMAND_H

#include <stdbool.h>
#include <sys/types.h>

#include "spec.h"

/* The identity of a command. */
struct identity {
	uid_t uid;
	gid_t gid;
	const gid_t *groups; /* supplementary */
	unsigned group_count;
	bool terminal; /* standard input is its controlling terminal */
	bool idle; /* there is no program: the reaper itself waits for a signal */
};

/* Starts a session with its terminal. From then on, signals for the process group reach the command. */
void command_begin(const struct identity *identity);
/* Executes the command. On failure writes the reason to standard error and exits with 127 (not found) or 126. */
_Noreturn void command_run(const struct spec *spec, const struct identity *identity);

#endif
