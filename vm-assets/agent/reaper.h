/*
 * The parent of a command: passes signals on, and reports how it ended. PID 1 of the pid namespace that it has for the
 * command; or, where the command joins another, beside that.
 */
#ifndef COPPICE_REAPER_H
#define COPPICE_REAPER_H

#include <stdint.h>

#include "command.h"
#include "spec.h"

/* What the agent sends to a reaper: a signal for the command or its process group. */
struct reaper_signal {
	uint32_t number;
	uint32_t flags; /* enum signal_flag */
};

struct reaper {
	struct spec *spec;
	struct identity identity;
	const int *streams; /* three */
	int control;
	int join; /* pidfd of the reaper whose namespaces the command joins; -1: it has its own */
};

_Noreturn void reaper_run(const struct reaper *reaper);

#endif
