/* The standard streams of a command: pipes, or a terminal. */
#ifndef COPPICE_STREAMS_H
#define COPPICE_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

struct streams {
	int theirs[3]; /* what the command gets as 0, 1 and 2; of a terminal three times the same */
	/* The agent's ends, which do not block. -1: none. */
	int in;
	int out;
	int err;
};

bool streams_pipes(struct streams *streams, bool has_stdin, struct problem *problem);
bool streams_terminal(struct streams *streams, unsigned rows, unsigned columns, struct problem *problem);
/* Closes the command's ends, once it has been forked. */
void streams_close_theirs(struct streams *streams);
void streams_close_ours(struct streams *streams);

bool streams_resize(int terminal, unsigned rows, unsigned columns);
/* The byte that ends input at a terminal; -1 where none does. */
int streams_end_byte(int terminal);

#endif
