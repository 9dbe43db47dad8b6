/* Sessions of EXEC: a command, from its specification to its exit. */
#ifndef COPPICE_EXEC_H
#define COPPICE_EXEC_H

#include <stdbool.h>

#include "frame.h"
#include "process.h"

/* Handles EXEC_OPEN. Returns false when the frame is malformed. */
bool exec_open(const struct frame *frame);
/* Handles FORGET, which ends a session whose EXIT the host has. */
bool exec_forget(const struct frame *frame);
/* The process of session `id`, if others can join its namespaces now; NULL otherwise. */
struct process *exec_host(uint32_t id);

#endif
