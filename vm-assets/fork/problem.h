#ifndef COPPICE_FORK_PROBLEM_H
#define COPPICE_FORK_PROBLEM_H

/* Writes the failed step and the text of errno to stderr, and exits with 1. Threads may call it. */
_Noreturn void fail(const char *step);

#endif
