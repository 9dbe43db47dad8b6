/*
 * The table of sessions: what was started and has not ended. A kind of session is a row of operations; its state is
 * its own, in tables that are indexed by the session's slot. This file knows no kind.
 */
#ifndef COPPICE_SESSION_H
#define COPPICE_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "frame.h"

/* Each class has slots of its own, from 0. Earlier classes are served first. */
enum session_class { SESSION_PROCESS, SESSION_TASK, SESSION_CONNECTION };

/* The descriptors of a session that the loop watches. */
enum watch { WATCH_CONTROL, WATCH_INPUT, WATCH_OUTPUT, WATCH_ERRORS };

struct session;

struct session_kind {
	enum session_class class;
	/* A frame for this session, whose length fits its type; false: malformed. */
	bool (*take)(struct session *session, const struct frame *frame);
	/* Credit from the host; false: no such stream. NULL: no stream takes any. */
	bool (*grant)(struct session *session, uint32_t stream, uint32_t bytes);
	/* A descriptor is ready. NULL: it watches none. */
	void (*ready)(struct session *session, enum watch watch);
	/* Does one piece of work; true when something moved. It may close the session. NULL: frames do all. */
	bool (*pump)(struct session *session, uint64_t now_ns);
	/* When it wants to be pumped without an event, in ns of CLOCK_MONOTONIC; UINT64_MAX: never. NULL: never. */
	uint64_t (*deadline)(const struct session *session);
	/* A child of the agent died; true when it is this session's. NULL: it has none. */
	bool (*reaped)(struct session *session, pid_t pid, int status, const struct rusage *usage);
	/* True when no request of the session is under way, so that the stream may stand still. NULL: never. */
	bool (*settled)(const struct session *session);
	/* Gives back what the session holds. */
	void (*close)(struct session *session);
};

struct session {
	const struct session_kind *kind; /* NULL: free */
	uint32_t id;
	unsigned slot; /* its place in its class */
	struct session *next; /* with the same hash of the id */
};

/* A free session with `id`. NULL after an ERROR was sent: the id is in use, or the class is full. */
struct session *session_open(uint32_t id, const struct session_kind *kind);
/* Calls the kind's close and frees the place. */
void session_close(struct session *session);
/* Sends DONE or ERROR as its last frame, and closes the session. */
void session_done(struct session *session, uint64_t value);
void session_fail(struct session *session, const struct problem *problem);
struct session *session_find(uint32_t id);
bool session_any(void);
/* True when every session is settled. */
bool session_all_settled(void);

/* Watches a descriptor of a session: inputs for room, all others for bytes. Outputs report once. */
void session_watch(const struct session *session, int fd, enum watch watch);
/* Watches an output again, which was read until it said EAGAIN. */
void session_watch_again(const struct session *session, int fd, enum watch watch);
/* True when `key`, as the poller gave it, is of a session; its operation `ready` was called. */
bool session_ready(uint64_t key);

void session_reaped(pid_t pid, int status, const struct rusage *usage);
/* False: the session cannot have such a stream. */
bool session_grant(uint32_t id, uint32_t stream, uint32_t bytes);
/* Lets every session do one piece of work, the classes in order and in each another one first every time. */
bool session_pump(uint64_t now_ns);
/* The earliest deadline; UINT64_MAX: none. */
uint64_t session_deadline(void);

#endif
