/* Ends the launcher with an error. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"

enum { EXIT_NOT_LAUNCHED = 125 };

void fail(const char *step, const char *subject)
{
	int saved = errno;

	fprintf(stderr, "launch: %s%s%s: %s\n", step, subject[0] ? " " : "", subject, strerror(saved));
	_exit(EXIT_NOT_LAUNCHED);
}
