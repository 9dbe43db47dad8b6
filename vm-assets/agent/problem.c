#include "problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool problem_set(struct problem *problem, int error, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(problem->text, sizeof problem->text, format, arguments);
	va_end(arguments);
	problem->error = error;
	if (length >= 0 && (size_t)length < sizeof problem->text)
		snprintf(problem->text + length, sizeof problem->text - (size_t)length, ": %s", strerror(error));
	return false;
}
