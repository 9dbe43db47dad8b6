#ifndef COPPICE_LAUNCH_REPORT_H
#define COPPICE_LAUNCH_REPORT_H

#include <sys/types.h>

#include "options.h"

/* Makes the pipe for the standard error of the program, when a report is wanted; else both are -1. */
void open_errors(const struct options *options, int errors[2]);
/* In the child: makes the pipe its standard error. */
void use_errors(const int errors[2]);
/*
 * Waits for the program and returns its wait status. Meanwhile it reads the program's standard error, and answers on the
 * lease. Then it writes the report: one line of JSON with the exit status, the signal and the end of the standard error.
 */
int tend(const struct options *options, pid_t child, int errors);

#endif
