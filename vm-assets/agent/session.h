/* The table of sessions: what the host started and what has not ended. */
#ifndef COPPICE_SESSION_H
#define COPPICE_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "exec.h"
#include "index.h"
#include "merge.h"
#include "problem.h"
#include "put.h"

enum session_kind { SESSION_FREE, SESSION_PUT, SESSION_EXEC, SESSION_INDEX, SESSION_MERGE };

struct session {
	enum session_kind kind;
	uint32_t id; /* chosen by the host */
	unsigned slot; /* its place in the table */
	union {
		struct put put;
		struct exec exec;
		struct index index;
		struct merge merge;
	};
};

/* A free session with `id`, zeroed. NULL after an ERROR was sent: the id is in use, or the table is full. */
struct session *session_open(uint32_t id, enum session_kind kind);
void session_close(struct session *session);
struct session *session_find(uint32_t id);
bool session_any(void);

/* The descriptors of a session that the loop watches. */
enum watch { WATCH_CONTROL, WATCH_STDIN, WATCH_STDOUT, WATCH_STDERR };

/* Marks a descriptor as ready. */
void session_ready(unsigned slot, enum watch watch);
/* Lets one output stream do a piece of work; true when something moved. */
bool session_pump_stream(const struct session *session, struct outflow *flow, enum watch watch, uint64_t now_ns);
/* A child of the agent died. */
void session_reaped(pid_t pid, int status);
/* Credit from the host. False: no such stream. */
bool session_grant(uint32_t id, uint32_t stream, uint32_t bytes);
/* Lets every session do one piece of work; true when something moved. */
bool session_pump(uint64_t now_ns);
/* When the next deadline is, in ns of CLOCK_MONOTONIC; UINT64_MAX: none. */
uint64_t session_deadline(void);

#endif
