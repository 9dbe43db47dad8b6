/* PID 1 of a command's pid namespace: reaps, passes signals on, and reports how the command ended. */
#ifndef COPPICE_REAPER_H
#define COPPICE_REAPER_H

#include "spec.h"

struct reaper {
	const struct spec *spec;
	int stdio[3];
	int control;
};

_Noreturn void reaper_run(const struct reaper *reaper);

#endif
