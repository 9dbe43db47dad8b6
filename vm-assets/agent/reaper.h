/*
 * The parent of a command. It passes signals on and reports the exit. It is PID 1 of the command's pid namespace, unless
 * the command joins another one; then it stays outside of that.
 */
#ifndef COPPICE_REAPER_H
#define COPPICE_REAPER_H

#include <stdint.h>

#include "command.h"
#include "spec.h"

/* A message from the agent to a reaper: a signal for the command or its process group. */
struct reaper_signal {
	uint32_t number;
	uint32_t flags; /* enum signal_flag */
};

struct reaper {
	struct spec *spec;
	struct identity identity;
	const int *streams; /* three descriptors */
	int control;
	int join; /* pidfd of the reaper whose namespaces the command joins; -1: none */
};

_Noreturn void reaper_run(const struct reaper *reaper);

#endif
