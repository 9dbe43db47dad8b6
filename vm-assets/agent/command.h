#ifndef COPPICE_COMMAND_H
#define COPPICE_COMMAND_H

#include "spec.h"

/* Becomes the command; or writes why not to standard error and exits 127 (not found) or 126. */
_Noreturn void command_run(const struct spec *spec);

#endif
