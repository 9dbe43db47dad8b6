#ifndef COPPICE_LAUNCH_ROOTS_H
#define COPPICE_LAUNCH_ROOTS_H

#include "options.h"

/* vm_root.c, tool_root.c, gate_root.c: enter namespaces and the new root. */
void enter_vm_root(const struct options *options);
void enter_tool_root(const struct options *options);
void enter_gate_root(const struct options *options);

#endif
