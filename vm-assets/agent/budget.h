/*
 * What the agent may come to hold, beside what commands are charged for. DESIGN.md has the same sum in words. Rings
 * and specifications take memory only while bytes are in them; the figures here are their most.
 */
#ifndef COPPICE_BUDGET_H
#define COPPICE_BUDGET_H

#include "protocol.h"

#define MIB (1 << 20)

/* Memory that no command can take: cgroup.c takes it off the limit of all commands together. */
#define RESERVE_BYTES (64LL * MIB)
/* Of that the kernel keeps for itself and for the page cache of walks. */
#define KERNEL_BYTES (10LL * MIB)

#define INPUTS_COUNT_MAX (PROCESSES_COUNT_MAX + CONNECTIONS_COUNT_MAX)
/* Credit beyond the first window of each input, for all inputs together. */
#define GRANTS_BYTES_MAX (8 * MIB)
/* Specifications of commands that are not yet forked, together: one of the largest. */
#define SPECS_BYTES_MAX EXEC_SPEC_BYTES_MAX
/* A pipe's buffer is charged to who writes: standard input is the agent's. Linux gives a pipe 16 pages. */
#define PIPE_BYTES 65536
/* What SO_SNDBUF and SO_RCVBUF of a connection are set to; the kernel doubles each, for its own structures. */
#define SOCKET_BUFFER_BYTES 16384
/* Buffers of frames, code, stack and tables. */
#define PROGRAM_BYTES (2LL * MIB)

#define BUDGET_BYTES \
	((long long)INPUTS_COUNT_MAX * INPUT_WINDOW_BYTES_INITIAL + GRANTS_BYTES_MAX + SPECS_BYTES_MAX + \
		(long long)PROCESSES_COUNT_MAX * PIPE_BYTES + (long long)CONNECTIONS_COUNT_MAX * 4 * SOCKET_BUFFER_BYTES + \
		PROGRAM_BYTES)
_Static_assert(BUDGET_BYTES <= RESERVE_BYTES - KERNEL_BYTES, "all rings, windows and grants fit the reserve");

/* Descriptors: five for each process while it starts, two for each task and connection, and some of the agent's own. */
#define DESCRIPTORS_COUNT_MAX (PROCESSES_COUNT_MAX * 5 + TASKS_COUNT_MAX * 2 + CONNECTIONS_COUNT_MAX * 2 + 64)
_Static_assert(DESCRIPTORS_COUNT_MAX <= 1024, "the kernel gives its first process 1024 descriptors");

#endif
