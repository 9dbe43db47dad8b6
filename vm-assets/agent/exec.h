/* EXEC: a command below its reaper, its streams, its deadline and its end. */
#ifndef COPPICE_EXEC_H
#define COPPICE_EXEC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "flow.h"
#include "frame.h"
#include "report.h"
#include "spec.h"

struct session;

struct exec {
	struct spec spec;
	bool has_stdin;
	uint64_t timeout_ns;

	pid_t reaper; /* 0: not forked yet, or reaped */
	pid_t command; /* in the command's own pid namespace */
	int reaper_status;
	int control; /* socket to the reaper */
	struct inflow in;
	struct outflow out[2];

	bool started;
	bool exited; /* the command; its wait status is known */
	int status;
	bool killed;
	bool timed_out;
	bool failed; /* before the command started */
	struct problem problem;
	uint64_t start_ns;
	uint64_t end_ns;
	uint64_t deadline_ns; /* the next: the time limit, then the end of draining */
};

/* Handlers of frames; false: malformed. */
bool exec_open(const struct frame *frame);
bool exec_spec(struct session *session, const struct frame *frame);
bool exec_stdin(struct session *session, const struct frame *frame);
bool exec_signal(struct session *session, const struct frame *frame);

bool exec_pump(struct session *session, uint64_t now_ns);
uint64_t exec_deadline(const struct exec *exec);
void exec_close(struct exec *exec);

#endif
