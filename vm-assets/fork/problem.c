/* Ends the program with an error. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "problem.h"

void fail(const char *step)
{
	char text[256];
	int length = snprintf(text, sizeof text, "copy-memory: %s: %s\n", step, strerror(errno));

	/* Nothing can be done when this fails, too. */
	if (length > 0 && write(STDERR_FILENO, text, (size_t)length) < 0)
		_exit(1);
	_exit(1);
}
