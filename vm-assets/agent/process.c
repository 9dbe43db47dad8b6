#include "process.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"
#include "clock.h"
#include "exit.h"
#include "frame.h"
#include "platform.h"
#include "protocol.h"
#include "quiesce.h"
#include "reaper.h"
#include "rings.h"
#include "streams.h"

/* How long output is accepted from processes that outlive the command. */
#define DRAIN_NS 200000000ULL
/* How long the kill of a lingering command's process group may take, before all of its processes are killed. */
#define KILL_NS 2000000000ULL
/* Interval of checks whether all processes of a killed command are gone. */
#define SETTLE_NS 2000000ULL

void process_clear(struct process *process)
{
	memset(process, 0, sizeof *process);
	process->control = process->in.fd = process->out[0].fd = process->out[1].fd = -1;
}

bool process_can_host(const struct process *process)
{
	/* The reaper of a process that joined another is in none of its own namespaces, so nothing can join it. */
	return process->isolated && process->started && !process->exited && !process->killed && process->reaper != 0;
}

/* Forks the reaper. Returns its pid, or -1 with a problem. */
static pid_t fork_reaper(struct process *process, unsigned slot, const struct launch *launch, int join,
	const struct streams *streams, struct problem *problem)
{
	int control[2];
	if (!report_pair(control)) {
		problem_set(problem, errno, "socket of the command");
		return -1;
	}
	pid_t pid = platform_fork_reaper(slot, process->isolated, problem);
	if (pid == 0) {
		struct reaper reaper = {
			.spec = launch->spec,
			.identity = launch->identity,
			.streams = streams->theirs,
			.control = control[1],
			.join = join,
		};
		reaper_run(&reaper);
	}
	close(control[1]);
	if (pid < 0)
		close(control[0]);
	else
		process->control = control[0];
	return pid;
}

bool process_start(struct process *process, const struct session *session, const struct launch *launch,
	struct problem *problem)
{
	struct streams streams;
	int join = -1;
	process->isolated = launch->host == NULL;
	process->terminal = launch->identity.terminal;
	process->lingers = launch->lingers;
	/* The pid is valid, because the agent has not reaped that reaper yet. */
	if (!process->isolated && (join = (int)syscall(SYS_pidfd_open, launch->host->reaper, 0)) < 0)
		return problem_set(problem, errno, "target process");
	bool opened = process->terminal ? streams_terminal(&streams, launch->rows, launch->columns, problem)
					: streams_pipes(&streams, launch->has_input, problem);
	pid_t pid = opened ? fork_reaper(process, session->slot, launch, join, &streams, problem) : -1;
	if (join >= 0)
		close(join);
	if (opened)
		streams_close_theirs(&streams);
	if (pid < 0) {
		if (opened)
			streams_close_ours(&streams);
		return false;
	}
	process->reaper = pid;
	process->reported = true;
	inflow_open(&process->in, streams.in, STREAM_STDIN, rings_of_process(session->slot));
	outflow_open_kept(&process->out[0], streams.out, STREAM_STDOUT, rings_of_output(session->slot, 0));
	outflow_open_kept(&process->out[1], streams.err, STREAM_STDERR, rings_of_output(session->slot, 1));
	session_watch(session, process->control, WATCH_CONTROL);
	if (streams.in >= 0)
		session_watch(session, streams.in, WATCH_INPUT);
	session_watch(session, streams.out, WATCH_OUTPUT);
	if (streams.err >= 0)
		session_watch(session, streams.err, WATCH_ERRORS);
	process->start_ns = clock_now();
	process->deadline_ns = launch->timeout_ns == 0 ? UINT64_MAX : process->start_ns + launch->timeout_ns;
	return true;
}

/* From now on the process ends soon after its command, whatever holds the outputs. */
static void cut(struct process *process, uint64_t now_ns)
{
	process->cut = true;
	if (process->exited && !process->killed && process->deadline_ns > now_ns + DRAIN_NS)
		process->deadline_ns = now_ns + DRAIN_NS;
}

bool process_signal(struct process *process, uint32_t number, uint32_t flags)
{
	struct reaper_signal order = {.number = number, .flags = flags};
	if (number == SIGTERM || number == SIGKILL)
		cut(process, clock_now());
	/* The reaper sends it, because only the reaper knows whether the pid still belongs to the command. */
	return process->control < 0 || send(process->control, &order, sizeof order, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

void process_limit(struct process *process, uint64_t timeout_ns)
{
	/* Afterwards, deadline_ns is no longer the time limit. */
	if (!process->exited && !process->killed && !process->timed_out && process->reaper != 0)
		process->deadline_ns = process->start_ns + timeout_ns;
}

void process_resize(const struct process *process, unsigned rows, unsigned columns)
{
	/* Resizing a closed terminal has no effect. */
	if (process->out[0].fd >= 0)
		streams_resize(process->out[0].fd, rows, columns);
}

void process_ready(struct process *process, enum watch watch)
{
	if (watch == WATCH_CONTROL)
		process->reported = true;
	else if (watch == WATCH_INPUT)
		process->in.writable = true;
	else if (watch == WATCH_OUTPUT)
		process->out[0].readable = true;
	else if (watch == WATCH_ERRORS)
		process->out[1].readable = true;
}

bool process_reaped(struct process *process, pid_t pid, int status, const struct rusage *usage)
{
	if (process->reaper != pid)
		return false;
	process->reaper = 0;
	process->reaper_status = status;
	/* Reports that the reaper sent before its death are readable by now, before their event. */
	process->reported = true;
	process->deadline_ns = UINT64_MAX;
	if (!process->exited)
		process->rusage = *usage;
	return true;
}

static bool take_reports(struct process *process, uint64_t now_ns)
{
	struct report report;
	bool moved = false;
	while (process->reported) {
		if (report_receive(process->control, &report) == REPORT_NONE) {
			process->reported = false;
			break;
		}
		moved = true;
		if (report.kind == REPORT_FAILED) {
			process->failed = true;
			process->problem = report.problem;
		} else if (report.kind == REPORT_STARTED) {
			process->started = true;
			process->command = report.value;
		} else if (report.kind == REPORT_EXITED && !process->killed) {
			process->exited = true;
			process->status = report.value;
			process->rusage = report.usage;
			process->end_ns = now_ns;
			/* A reaped reaper has left nothing that could be killed. The time limit remains for a lingering command. */
			if (process->reaper == 0)
				process->deadline_ns = UINT64_MAX;
			else if (!process->lingers || process->cut)
				process->deadline_ns = now_ns + DRAIN_NS;
			process->out[0].hold_ns = 0;
			process->out[1].hold_ns = 0;
		}
	}
	return moved;
}

static bool announce(struct process *process, const struct session *session)
{
	uint8_t payload[4];
	if (!process->started || process->announced || !frame_can_answer())
		return false;
	put_u32(payload, (uint32_t)process->command);
	frame_send(AGENT_STARTED, session->id, payload, sizeof payload);
	process->announced = true;
	return true;
}

static bool outputs_ended(const struct process *process)
{
	return process->out[0].fd < 0 && process->out[1].fd < 0;
}

/* Kills the process group of a lingering command at its time limit. Its other processes stay. */
static void kill_group(struct process *process, uint64_t now_ns)
{
	process_signal(process, SIGKILL, SIGNAL_FLAG_GROUP);
	process->deadline_ns = now_ns + KILL_NS;
}

/*
 * Kills the process at its time limit, or the rest of it when its output was drained. The rest of a lingering command stays.
 * Returns true when something moved.
 */
static bool enforce(struct process *process, unsigned slot, uint64_t now_ns)
{
	if (process->killed || process->reaper == 0)
		return false;
	bool late = now_ns >= process->deadline_ns;
	bool ended = process->exited && outputs_ended(process);
	if (!late && !ended)
		return false;
	/* The deadline is still the time limit. */
	bool limited = !ended && !process->timed_out && (!process->exited || (process->lingers && !process->cut));
	if (limited) {
		process->timed_out = true;
		process->end_ns = now_ns;
	}
	if (limited && process->lingers && !process->exited) {
		kill_group(process, now_ns);
	} else {
		process->killed = true;
		process->deadline_ns = UINT64_MAX;
		/* Kill before the thaw: an interrupted writer must not write anything more. */
		if (process->lingers && process->exited)
			platform_leave(slot, process->reaper);
		else
			platform_kill(slot, process->reaper, process->command);
		for (int i = 0; i < 2 && process->lingers; i++)
			outflow_cut(&process->out[i]);
	}
	if (limited && !process->exited)
		quiesce_cancel();
	return true;
}

/* Sends a terminal's end-of-file byte, because a terminal has no end of input. Returns false when it is not writable. */
static bool end_terminal(struct inflow *in)
{
	int end = streams_end_byte(in->fd);
	uint8_t byte = (uint8_t)end;
	if (end < 0 || write(in->fd, &byte, 1) == 1 || errno != EAGAIN)
		return true;
	in->writable = false;
	return false;
}

static bool pump_input(struct process *process, const struct session *session)
{
	struct inflow *in = &process->in;
	if (process->terminal && in->fd >= 0 && in->ending && in->size == 0 && (!in->writable || !end_terminal(in)))
		return false;
	return inflow_pump(in, session->id);
}

bool process_pump(struct process *process, const struct session *session, uint64_t now_ns, bool *over)
{
	bool moved = take_reports(process, now_ns);
	*over = false;
	moved |= announce(process, session);
	/* STARTED precedes the first output, even if output is readable before the reaper's report. */
	if (process->announced) {
		moved |= outflow_pump(&process->out[0], session, WATCH_OUTPUT, now_ns);
		moved |= outflow_pump(&process->out[1], session, WATCH_ERRORS, now_ns);
	}
	moved |= pump_input(process, session);
	moved |= enforce(process, session->slot, now_ns);
	if (process->reaper != 0 || process->visitor_count > 0)
		return moved;
	/* A command that never started ends with an ERROR. */
	if (process->started ? !outputs_ended(process) : !frame_can_answer())
		return moved;
	/* With its pid namespace, all processes are dead. Without one, the last may take a moment. */
	*over = process->isolated || platform_is_empty(session->slot);
	process->deadline_ns = now_ns + SETTLE_NS;
	return moved;
}

uint64_t process_deadline(const struct process *process)
{
	uint64_t earliest = process->deadline_ns;
	for (int i = 0; i < 2 && process->announced; i++) {
		uint64_t deadline = outflow_deadline(&process->out[i]);
		if (deadline < earliest)
			earliest = deadline;
	}
	return earliest;
}

/* Releases everything but the output that the host may still need. */
static void close_ends(struct process *process)
{
	inflow_release(&process->in);
	outflow_close(&process->out[0]);
	outflow_close(&process->out[1]);
	if (process->control >= 0)
		close(process->control);
	process->control = -1;
}

bool process_finish(struct process *process, unsigned slot, uint64_t now_ns)
{
	struct usage usage = {0};
	platform_release(slot, &usage);
	if (process->started && !process->failed) {
		uint64_t end_ns = process->end_ns != 0 ? process->end_ns : now_ns;
		const struct ending ending = {
			.exited = process->exited,
			.timed_out = process->timed_out,
			/* A reaper dies by itself only because of reboot(2), and then its status stands for the command's. */
			.status = process->exited ? process->status : process->reaper_status,
			.rusage = &process->rusage,
			.wall_us = (end_ns - process->start_ns) / 1000,
		};
		exit_write(process->exit, &ending, &usage);
		close_ends(process);
		process->finished = true;
		return true;
	}
	if (!process->failed && process->timed_out)
		problem_set(&process->problem, ETIMEDOUT, "the time was up before the command started");
	else if (!process->failed)
		problem_set(&process->problem, ECHILD, "the reaper died before the command started");
	return false;
}

bool process_deliver(struct process *process, const struct session *session, uint64_t now_ns)
{
	bool moved = announce(process, session);
	moved |= outflow_pump(&process->out[0], session, WATCH_OUTPUT, now_ns);
	moved |= outflow_pump(&process->out[1], session, WATCH_ERRORS, now_ns);
	bool sent = outflow_over(&process->out[0]) && outflow_over(&process->out[1]);
	if (process->exit_sent || !sent || !frame_can_answer())
		return moved;
	frame_send(AGENT_EXIT, session->id, process->exit, sizeof process->exit);
	process->exit_sent = true;
	return true;
}

uint32_t process_resume(struct process *process, uint8_t *record)
{
	const struct inflow *in = &process->in;
	const struct keep *out = &process->out[0].keep;
	const struct keep *err = &process->out[1].keep;
	for (int i = 0; i < 2; i++)
		keep_rewind(&process->out[i].keep);
	process->announced = process->started;
	process->exit_sent = false;
	put_u32(record + 12, (uint32_t)process->command);
	put_u64(record + 24, in->received);
	put_u64(record + 32, process->finished ? 0 : in->window - in->size - in->returnable);
	put_u64(record + 40, out->offset);
	put_u64(record + 48, err->offset);
	put_u64(record + 56, (clock_now() - process->start_ns) / 1000000);
	put_u64(record + 64, out->size + err->size);
	uint32_t flags = process->started ? SESSION_FLAG_STARTED : 0;
	flags |= process->finished ? SESSION_FLAG_FINISHED : 0;
	return flags | (in->ending ? SESSION_FLAG_STDIN_ENDED : 0);
}

void process_close(struct process *process)
{
	close_ends(process);
	outflow_release(&process->out[0]);
	outflow_release(&process->out[1]);
}
