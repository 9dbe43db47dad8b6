/* The standard streams of a command: pipes, or a terminal. */
#ifndef COPPICE_STREAMS_H
#define COPPICE_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

struct streams {
	int theirs[3]; /* descriptors 0, 1 and 2 of the command; all three are the same terminal */
	/* The agent's non-blocking ends; -1: none. */
	int in;
	int out;
	int err;
};

bool streams_pipes(struct streams *streams, bool has_stdin, struct problem *problem);
bool streams_terminal(struct streams *streams, unsigned rows, unsigned columns, struct problem *problem);
/* Closes the command's ends after the fork. */
void streams_close_theirs(struct streams *streams);
void streams_close_ours(struct streams *streams);

bool streams_resize(int terminal, unsigned rows, unsigned columns);
/* The byte that ends input at a terminal; -1 when it is disabled. */
int streams_end_byte(int terminal);

#endif
