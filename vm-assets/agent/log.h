#ifndef COPPICE_LOG_H
#define COPPICE_LOG_H

#include <stdbool.h>

/* A line for the operator: into the machine's log and, when there is room, to the host. */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* While it is mute, lines go to the machine's log only. */
void log_mute(bool mute);
/*
 * Ends the machine after logging why. Nothing that could go on is lost: the host believes only final
 * frames, so a stream that closes before one is a failed operation.
 */
_Noreturn void log_fatal(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
