/*
 * The table of open sessions. A kind of session is a row of operations. Its state is in a table of the kind, indexed by the
 * session's slot. This file does not depend on any kind.
 */
#ifndef COPPICE_SESSION_H
#define COPPICE_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "frame.h"

/* Each class has slots from 0. Earlier classes are served first. */
enum session_class { SESSION_PROCESS, SESSION_TASK, SESSION_CONNECTION, SESSION_FILE, SESSION_WATCH };

/* The descriptors of a session that the loop watches. */
enum watch { WATCH_CONTROL, WATCH_INPUT, WATCH_OUTPUT, WATCH_ERRORS };

struct session;

struct session_kind {
	enum session_class class;
	/* Handles a frame, whose length is valid for its type. Returns false when it is malformed. */
	bool (*take)(struct session *session, const struct frame *frame);
	/* Takes credit from the host. Returns false when there is no such stream. NULL: no stream takes credit. */
	bool (*grant)(struct session *session, uint32_t stream, uint32_t bytes);
	/* A descriptor is ready. NULL: the kind watches none. */
	void (*ready)(struct session *session, enum watch watch);
	/* Does one piece of work. Returns true when something moved. May close the session. NULL: frames do all work. */
	bool (*pump)(struct session *session, uint64_t now_ns);
	/* Time of the next pump without an event, in ns of CLOCK_MONOTONIC; UINT64_MAX: never. NULL: never. */
	uint64_t (*deadline)(const struct session *session);
	/* A child of the agent died. Returns true when it belongs to this session. NULL: the kind has no children. */
	bool (*reaped)(struct session *session, pid_t pid, int status, const struct rusage *usage);
	/* True when no request of the session is under way, so that the stream may be held. NULL: never. */
	bool (*settled)(const struct session *session);
	/* The host is gone. A session that does not `resume` ends soon, as if it had ended it. NULL: it closes at once. */
	void (*lost)(struct session *session);
	/*
	 * Begins again with another host, which gets everything again that the one before did not acknowledge. Writes SESSION_BYTES
	 * that describe the session. Only of processes.
	 */
	void (*resume)(struct session *session, uint8_t *record);
	/* Releases everything that the session holds. */
	void (*close)(struct session *session);
};

struct session {
	const struct session_kind *kind; /* NULL: free */
	uint32_t id;
	unsigned slot; /* index in its class */
	struct session *next; /* next session with the same hash of the id */
};

/* Opens a session. Returns NULL after sending ERROR when the id is in use or the class is full. */
struct session *session_open(uint32_t id, const struct session_kind *kind);
/* Opens a session on the guest's side, with an id of its own. Returns NULL when the class is full or no id is left. */
struct session *session_open_guest(const struct session_kind *kind);
/* A number that no session and no query of this machine had before; 0 when none is left. */
uint32_t session_guest_id(void);
/* The number of open sessions of a class. */
unsigned session_count(enum session_class class);
/* Calls the kind's close and frees the entry. */
void session_close(struct session *session);
/* Send DONE or ERROR as the last frame, and close the session. */
void session_done(struct session *session, uint64_t value);
void session_fail(struct session *session, const struct problem *problem);
struct session *session_find(uint32_t id);
/* The open session with this slot of a class. */
struct session *session_at(enum session_class class, unsigned slot);
bool session_any(void);
/* Ends the sessions that cannot continue without their host. Some take a moment. */
void session_lose_host(void);
/* True when only sessions are left that can continue with another host. */
bool session_all_lasting(void);
/* Lets them begin again, and describes them. Returns their number. */
unsigned session_resume(uint8_t *records);
/* True when all sessions are settled. */
bool session_all_settled(void);

/* Watches a descriptor of a session: inputs for writing, others for reading. Outputs report only one event. */
void session_watch(const struct session *session, int fd, enum watch watch);
/* Watches an output again after it returned EAGAIN. */
void session_watch_again(const struct session *session, int fd, enum watch watch);
/* Handles an event. Returns false when the key does not belong to a session. */
bool session_ready(uint64_t key);

void session_reaped(pid_t pid, int status, const struct rusage *usage);
/* Passes credit on. Returns false when the session cannot have such a stream. */
bool session_grant(uint32_t id, uint32_t stream, uint32_t bytes);
/* Lets every session do one piece of work, by class, and each time beginning with another session. */
bool session_pump(uint64_t now_ns);
/* The earliest deadline; UINT64_MAX: none. */
uint64_t session_deadline(void);

#endif
