/* A started command: its reaper, streams, deadline and end. */
#ifndef COPPICE_PROCESS_H
#define COPPICE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "command.h"
#include "flow.h"
#include "problem.h"
#include "report.h"
#include "session.h"
#include "spec.h"

struct process {
	bool isolated; /* in namespaces of its own */
	bool terminal;
	bool lingers; /* what the command leaves behind stays */
	unsigned visitor_count; /* sessions that work on its files; it is over only after them */
	pid_t reaper; /* 0: not forked yet, or reaped */
	pid_t command; /* pid in the command's own pid namespace */
	int reaper_status;
	int control; /* socket to the reaper */
	bool reported; /* the socket may have reports */
	struct inflow in;
	struct outflow out[2];

	bool started;
	bool announced; /* the host knows that it has started */
	bool exited; /* the command has exited and `status` is valid */
	int status;
	struct rusage rusage; /* usage of the command; of its reaper if that died without a report */
	bool cut; /* the end does not wait for the outputs of what a lingering command leaves behind */
	bool killed; /* with all of its processes, or only its reaper */
	bool timed_out;
	bool failed; /* failed before the command started */
	struct problem problem;
	uint64_t start_ns; /* 0: not forked yet */
	uint64_t end_ns;
	bool finished; /* nothing is left of it but `exit` and the output that the host was not sent */
	bool exit_sent;
	uint8_t exit[EXIT_BYTES]; /* the payload of EXIT */
	uint64_t deadline_ns; /* time limit, end of killing or draining, or check for remaining processes; UINT64_MAX: none */
};

struct launch {
	struct spec *spec;
	struct identity identity;
	bool has_input;
	bool lingers;
	unsigned rows; /* size of the terminal, if there is one */
	unsigned columns;
	uint64_t timeout_ns; /* 0: none */
	const struct process *host; /* process whose namespaces the command joins; NULL: namespaces of its own */
};

/* Initialises a process without anything to close. */
void process_clear(struct process *process);
bool process_start(struct process *process, const struct session *session, const struct launch *launch,
	struct problem *problem);
/* True when others can join its namespaces now. */
bool process_can_host(const struct process *process);
bool process_signal(struct process *process, uint32_t number, uint32_t flags);
/* Changes the time limit, counted from the start. Does nothing after the command ended. */
void process_limit(struct process *process, uint64_t timeout_ns);
void process_resize(const struct process *process, unsigned rows, unsigned columns);
void process_ready(struct process *process, enum watch watch);
/* Returns true when `pid` was its reaper. */
bool process_reaped(struct process *process, pid_t pid, int status, const struct rusage *usage);
/* Does one piece of work. Returns true when something moved. `over`: no process is left, and all output is read. */
bool process_pump(struct process *process, const struct session *session, uint64_t now_ns, bool *over);
uint64_t process_deadline(const struct process *process);
/* Finishes a process that is over. Returns false with its problem when the command never started. */
bool process_finish(struct process *process, unsigned slot, uint64_t now_ns);
/* Sends the rest of the output and EXIT. Returns true when something moved. */
bool process_deliver(struct process *process, const struct session *session, uint64_t now_ns);
/* Begins again with another host. Writes its part of the record of a session, and returns its SESSION_FLAGs. */
uint32_t process_resume(struct process *process, uint8_t *record);
void process_close(struct process *process);

#endif
