/*
 * Limits of the agent's memory, without the memory that commands are charged for. DESIGN.md explains the sum. Rings and
 * specifications take memory only while they contain bytes; these are their largest sizes.
 */
#ifndef COPPICE_BUDGET_H
#define COPPICE_BUDGET_H

#include "protocol.h"

#define MIB (1 << 20)

/* Memory that commands cannot take: cgroup.c subtracts it from the limit of all commands. */
#define RESERVE_BYTES (72LL * MIB)
/* The part of it that is left to the kernel and to the page cache of walks. */
#define KERNEL_BYTES (10LL * MIB)

#define INPUTS_COUNT_MAX (PROCESSES_COUNT_MAX + CONNECTIONS_COUNT_MAX + FILES_COUNT_MAX)
/* Credit beyond the initial windows, for all inputs together. */
#define GRANTS_BYTES_MAX (3 * MIB)
/* Output of commands that the host has not granted again: of each stream, and the growth of all streams together. */
#define KEEPS_COUNT_MAX (2 * PROCESSES_COUNT_MAX)
#define KEEPS_GROWTH_BYTES_MAX (3 * MIB)
/* Limit of all specifications that are being received: one of the largest size. */
#define SPECS_BYTES_MAX EXEC_SPEC_BYTES_MAX
/* The kernel charges a pipe's buffer to the writer, which is the agent for standard input. A pipe has 16 pages. */
#define PIPE_BYTES 65536
/* SO_SNDBUF and SO_RCVBUF of a connection. The kernel doubles each for its own structures. */
#define SOCKET_BUFFER_BYTES 16384
/* The same of connections that carry much, and how many there are of them. */
#define WIDE_SOCKET_BUFFER_BYTES 65536
#define WIDE_SOCKETS_COUNT_MAX 8
/* Buffers of frames, code, stack and other tables. */
#define PROGRAM_BYTES (2LL * MIB)

/* Names that programs of the guest resolved, with their synthetic addresses. */
#define NAMES_COUNT_MAX 4096
#define NAMES_BYTES (MIB + MIB / 4)
/* Questions of programs that the host has not answered yet. */
#define QUESTIONS_COUNT_MAX 64
#define QUESTION_CLIENTS_COUNT_MAX 16
/* SO_SNDBUF and SO_RCVBUF of a client with questions over TCP, which are short. */
#define QUESTION_SOCKET_BUFFER_BYTES 4096
/* SO_RCVBUF of the socket of questions, for bursts of several hundreds, and of the one of the guest's addresses. */
#define QUESTION_QUEUE_BYTES 262144
#define ADDRESS_QUEUE_BYTES 32768
/* Ring of held SYNs, which the kernel fills. */
#define HELD_RING_BYTES 65536
/* Connections that the kernel completed and the agent has not accepted. Only forged ones make more than a few. */
#define ACCEPTS_COUNT_MAX 16
/* The sockets of the guest's network: those connections, and clients with questions, accepted or not. */
#define NETWORK_SOCKETS_BYTES \
	(ACCEPTS_COUNT_MAX * 4LL * SOCKET_BUFFER_BYTES + 2 * QUESTION_CLIENTS_COUNT_MAX * 4LL * QUESTION_SOCKET_BUFFER_BYTES)
#define NETWORK_BYTES \
	(NAMES_BYTES + HELD_RING_BYTES + 2LL * (QUESTION_QUEUE_BYTES + ADDRESS_QUEUE_BYTES) + NETWORK_SOCKETS_BYTES)

#define BUDGET_BYTES \
	((long long)INPUTS_COUNT_MAX * INPUT_WINDOW_BYTES_INITIAL + GRANTS_BYTES_MAX + SPECS_BYTES_MAX + \
		(long long)KEEPS_COUNT_MAX * KEEP_BYTES_MIN + KEEPS_GROWTH_BYTES_MAX + \
		(PROCESSES_COUNT_MAX + FILES_COUNT_MAX) * (long long)PIPE_BYTES + \
		(long long)CONNECTIONS_COUNT_MAX * 4 * SOCKET_BUFFER_BYTES + \
		WIDE_SOCKETS_COUNT_MAX * 4LL * (WIDE_SOCKET_BUFFER_BYTES - SOCKET_BUFFER_BYTES) + \
		PROGRAM_BYTES + NETWORK_BYTES)
_Static_assert(BUDGET_BYTES <= RESERVE_BYTES - KERNEL_BYTES, "all rings, windows and grants fit the reserve");

/*
 * Descriptors: four for each process, two for each task, connection and watch, three for each request for files, one for each
 * client with questions, and some of the agent's own, with those that it holds while a process starts.
 */
#define DESCRIPTORS_COUNT_MAX \
	(PROCESSES_COUNT_MAX * 4 + TASKS_COUNT_MAX * 2 + CONNECTIONS_COUNT_MAX * 2 + FILES_COUNT_MAX * 3 + \
		WATCHES_COUNT_MAX * 2 + QUESTION_CLIENTS_COUNT_MAX + 64)
_Static_assert(DESCRIPTORS_COUNT_MAX <= 4096, "the kernel permits its first process 4096 descriptors");

#endif
