#ifndef COPPICE_LOG_H
#define COPPICE_LOG_H

#include <stdbool.h>

/* Writes a line to the machine's log and, if the output buffer has room, to the host. */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* While muted, lines are written only to the machine's log. */
void log_mute(bool mute);
/*
 * Logs the reason and ends the machine. This loses nothing: the host believes only final frames, and treats a stream that
 * closes before one as a failure.
 */
_Noreturn void log_fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
