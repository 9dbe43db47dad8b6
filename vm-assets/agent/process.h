/* A command that was started: its reaper, its streams, its deadline and its end. */
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
	bool apart; /* in namespaces of its own */
	bool terminal;
	pid_t reaper; /* 0: not forked yet, or reaped */
	pid_t command; /* in the command's own pid namespace */
	int reaper_status;
	int control; /* socket to the reaper */
	struct inflow in;
	struct outflow out[2];

	bool started;
	bool exited; /* the command; its wait status is known */
	int status;
	struct rusage rusage; /* of the command; of its reaper when that died before it could tell */
	bool killed;
	bool timed_out;
	bool failed; /* before the command started */
	struct problem problem;
	uint64_t start_ns; /* 0: not forked yet */
	uint64_t end_ns;
	uint64_t deadline_ns; /* the next: the time limit, the end of draining, another look for what is left; UINT64_MAX: none */
};

struct launch {
	struct spec *spec;
	struct identity identity;
	bool has_input;
	unsigned rows; /* of the terminal, if there is one */
	unsigned columns;
	uint64_t timeout_ns; /* 0: none */
	const struct process *host; /* whose namespaces the command joins; NULL: it has its own */
	uint8_t *ring; /* for standard input */
};

/* No process yet: nothing to close. */
void process_clear(struct process *process);
bool process_start(struct process *process, const struct session *session, const struct launch *launch,
	struct problem *problem);
/* True when others can join its namespaces now. */
bool process_can_host(const struct process *process);
bool process_signal(const struct process *process, uint32_t number, uint32_t flags);
/* Another time limit, from its start on; without effect once it ended. */
void process_limit(struct process *process, uint64_t timeout_ns);
void process_resize(const struct process *process, unsigned rows, unsigned columns);
void process_ready(struct process *process, enum watch watch);
/* True when `pid` was its reaper. */
bool process_reaped(struct process *process, pid_t pid, int status, const struct rusage *usage);
/* Does one piece of work; true when something moved. `over`: nothing of it is alive, and every byte is sent. */
bool process_pump(struct process *process, const struct session *session, uint64_t now_ns, bool *over);
uint64_t process_deadline(const struct process *process);
/* The last frame of a process that is over: EXIT; or ERROR when it never started. */
void process_finish(struct process *process, const struct session *session, uint64_t now_ns);
void process_close(struct process *process);

#endif
