/*
 * Limits of the agent's memory, without the memory that commands are charged for. DESIGN.md explains the sum. Rings and
 * specifications take memory only while they contain bytes; these are their largest sizes.
 */
#ifndef COPPICE_BUDGET_H
#define COPPICE_BUDGET_H

#include "protocol.h"

#define MIB (1 << 20)

/* Memory that commands cannot take: cgroup.c subtracts it from the limit of all commands. */
#define RESERVE_BYTES (64LL * MIB)
/* The part of it that is left to the kernel and to the page cache of walks. */
#define KERNEL_BYTES (10LL * MIB)

#define INPUTS_COUNT_MAX (PROCESSES_COUNT_MAX + CONNECTIONS_COUNT_MAX)
/* Credit beyond the initial windows, for all inputs together. */
#define GRANTS_BYTES_MAX (8 * MIB)
/* Limit of all specifications that are being received: one of the largest size. */
#define SPECS_BYTES_MAX EXEC_SPEC_BYTES_MAX
/* The kernel charges a pipe's buffer to the writer, which is the agent for standard input. A pipe has 16 pages. */
#define PIPE_BYTES 65536
/* SO_SNDBUF and SO_RCVBUF of a connection. The kernel doubles each for its own structures. */
#define SOCKET_BUFFER_BYTES 16384
/* Buffers of frames, code, stack and tables. */
#define PROGRAM_BYTES (2LL * MIB)

#define BUDGET_BYTES \
	((long long)INPUTS_COUNT_MAX * INPUT_WINDOW_BYTES_INITIAL + GRANTS_BYTES_MAX + SPECS_BYTES_MAX + \
		(long long)PROCESSES_COUNT_MAX * PIPE_BYTES + (long long)CONNECTIONS_COUNT_MAX * 4 * SOCKET_BUFFER_BYTES + \
		PROGRAM_BYTES)
_Static_assert(BUDGET_BYTES <= RESERVE_BYTES - KERNEL_BYTES, "all rings, windows and grants fit the reserve");

/* Descriptors: five for each starting process, two for each task and connection, and some of the agent's own. */
#define DESCRIPTORS_COUNT_MAX (PROCESSES_COUNT_MAX * 5 + TASKS_COUNT_MAX * 2 + CONNECTIONS_COUNT_MAX * 2 + 64)
_Static_assert(DESCRIPTORS_COUNT_MAX <= 1024, "the kernel gives its first process 1024 descriptors");

#endif
