/* The reason of a failed step: an errno, and a text for the operator with the step and the path. */
#ifndef COPPICE_PROBLEM_H
#define COPPICE_PROBLEM_H

#include <stdbool.h>

#define PROBLEM_TEXT_BYTES 512

struct problem {
	int error;
	char text[PROBLEM_TEXT_BYTES];
};

/* Records a problem, with strerror(error) after the text. Returns false, so that callers can return the result. */
bool problem_set(struct problem *problem, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
