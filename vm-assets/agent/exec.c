#include "exec.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#include "bytes.h"
#include "log.h"
#include "network/network.h"
#include "process.h"
#include "protocol.h"
#include "session.h"
#include "spec.h"
#include "steps.h"

/* Far above the service's limits; it prevents arithmetic overflow. */
#define TIMEOUT_MS_MAX (366ULL * 24 * 3600 * 1000)

struct exec {
	struct spec spec;
	struct launch launch;
	uint32_t target; /* the session whose namespaces the command joins; 0: none */
	uint32_t tag; /* the host's name of the command */
	struct process process;
};

static struct exec execs[PROCESSES_COUNT_MAX];
static const struct session_kind exec_kind;

static struct exec *exec_of(const struct session *session)
{
	return &execs[session->slot];
}

static bool check(const struct exec *exec, uint32_t size, uint64_t timeout_ms, struct problem *problem)
{
	const struct identity *identity = &exec->launch.identity;
	/* A command with a target ends with it, so it needs no time limit of its own. */
	bool unlimited = exec->target != 0 || identity->idle;
	if ((timeout_ms == 0 && !unlimited) || timeout_ms > TIMEOUT_MS_MAX)
		return problem_set(problem, EINVAL, "time limit of %llu ms", (unsigned long long)timeout_ms);
	/* In the system calls this number means "no change". */
	if (identity->uid == (uid_t)-1 || identity->gid == (gid_t)-1)
		return problem_set(problem, EINVAL, "user %u, group %u", identity->uid, identity->gid);
	if (size == 0 || size > EXEC_SPEC_BYTES_MAX)
		return problem_set(problem, E2BIG, "specification of %u bytes", size);
	return true;
}

bool exec_open(const struct frame *frame)
{
	const uint8_t *payload = frame->payload;
	uint32_t size = get_u32(payload);
	uint32_t flags = get_u32(payload + 4);
	uint64_t timeout_ms = get_u64(payload + 8);
	bool terminal = (flags & EXEC_FLAG_TERMINAL) != 0;
	bool idle = flags == EXEC_FLAG_IDLE;
	if ((!idle && (flags & ~(uint32_t)(EXEC_FLAG_STDIN | EXEC_FLAG_TERMINAL | EXEC_FLAG_LINGER)) != 0) ||
	    /* What a command leaves behind needs the namespaces of another one. */
	    ((flags & EXEC_FLAG_LINGER) != 0 && get_u32(payload + 16) == 0) ||
	    (!terminal && get_u32(payload + 28) != 0) || (idle && get_u32(payload + 16) != 0))
		return false;
	if (!steps_check(frame->session, true))
		return true;
	struct session *session = session_open(frame->session, &exec_kind);
	if (session == NULL)
		return true;
	struct exec *exec = exec_of(session);
	memset(exec, 0, sizeof *exec);
	process_clear(&exec->process);
	exec->target = get_u32(payload + 16);
	exec->tag = get_u32(payload + 32);
	exec->launch = (struct launch){
		.spec = &exec->spec,
		.identity = {.uid = get_u32(payload + 20), .gid = get_u32(payload + 24), .terminal = terminal, .idle = idle},
		.has_input = (flags & (EXEC_FLAG_STDIN | EXEC_FLAG_TERMINAL)) != 0,
		.lingers = (flags & EXEC_FLAG_LINGER) != 0,
		.rows = get_u16(payload + 28),
		.columns = get_u16(payload + 30),
		.timeout_ns = timeout_ms * 1000000,
	};
	struct problem problem;
	if (!check(exec, size, timeout_ms, &problem) || !spec_open(&exec->spec, size, &problem))
		session_fail(session, &problem);
	return true;
}

struct process *exec_host(uint32_t id)
{
	struct session *session = session_find(id);
	struct exec *exec = session == NULL || session->kind != &exec_kind ? NULL : exec_of(session);
	return exec != NULL && process_can_host(&exec->process) ? &exec->process : NULL;
}

/* True when no other command runs. */
static bool is_alone(void)
{
	unsigned count = 0;
	for (unsigned slot = 0; slot < PROCESSES_COUNT_MAX; slot++)
		if (session_at(SESSION_PROCESS, slot)->kind != NULL && !execs[slot].process.finished)
			count++;
	return count == 1;
}

static bool start(struct session *session, struct exec *exec, struct problem *problem)
{
	if (exec->target != 0 && (exec->launch.host = exec_host(exec->target)) == NULL)
		return problem_set(problem, ESRCH, "target process %u", exec->target);
	if (exec->target == 0) {
		char hostname[HOSTNAME_BYTES_MAX + 1];
		spec_read_hostname(&exec->spec, hostname);
		network_begin_command(hostname, is_alone());
	}
	return process_start(&exec->process, session, &exec->launch, problem);
}

static bool has_started(const struct exec *exec)
{
	return exec->process.start_ns != 0;
}

static bool take_spec(struct session *session, const struct frame *frame)
{
	struct exec *exec = exec_of(session);
	struct spec *spec = &exec->spec;
	/* The command runs already: the frame belongs to an EXEC that was refused because its id is in use. */
	if (has_started(exec))
		return true;
	if (frame->length > spec->size - spec->received)
		return false;
	memcpy(spec->map + spec->received, frame->payload, frame->length);
	spec->received += frame->length;
	if (spec->received < spec->size)
		return true;
	struct problem problem;
	if (!start(session, exec, &problem))
		session_fail(session, &problem);
	else
		spec_close(spec);
	return true;
}

static bool take_signal(struct session *session, const struct frame *frame)
{
	uint32_t number = get_u32(frame->payload);
	uint32_t flags = get_u32(frame->payload + 4);
	if (number == 0 || number >= (uint32_t)_NSIG || flags > SIGNAL_FLAG_GROUP)
		return false;
	if (!process_signal(&exec_of(session)->process, number, flags))
		log_line("session %u: signal %u was not delivered", session->id, number);
	return true;
}

static bool take_limit(struct exec *exec, const struct frame *frame)
{
	uint64_t timeout_ms = get_u64(frame->payload);
	if (timeout_ms == 0 || timeout_ms > TIMEOUT_MS_MAX)
		return false;
	exec->launch.timeout_ns = timeout_ms * 1000000;
	if (has_started(exec))
		process_limit(&exec->process, exec->launch.timeout_ns);
	return true;
}

static bool exec_take(struct session *session, const struct frame *frame)
{
	struct exec *exec = exec_of(session);
	struct inflow *in = &exec->process.in;
	/* The host sent it before it received the EXIT. */
	if (exec->process.finished)
		return true;
	switch (frame->type) {
	case HOST_EXEC_SPEC:
		return take_spec(session, frame);
	case HOST_STDIN:
		/* Standard input must follow the complete specification, because before that there is no pipe. */
		if (!exec->launch.has_input || !has_started(exec))
			return false;
		if (frame->length > 0)
			return inflow_take(in, frame->payload, frame->length);
		inflow_end(in);
		return true;
	case HOST_SIGNAL:
		return take_signal(session, frame);
	case HOST_RESIZE:
		if (!exec->launch.identity.terminal || !has_started(exec))
			return false;
		process_resize(&exec->process, get_u16(frame->payload), get_u16(frame->payload + 2));
		return true;
	case HOST_LIMIT:
		return take_limit(exec, frame);
	default:
		return false;
	}
}

static bool exec_grant(struct session *session, uint32_t stream, uint32_t bytes)
{
	if (stream != STREAM_STDOUT && stream != STREAM_STDERR)
		return false;
	return outflow_grant(&exec_of(session)->process.out[stream - STREAM_STDOUT], bytes);
}

static void exec_ready(struct session *session, enum watch watch)
{
	process_ready(&exec_of(session)->process, watch);
}

static bool exec_reaped(struct session *session, pid_t pid, int status, const struct rusage *usage)
{
	return process_reaped(&exec_of(session)->process, pid, status, usage);
}

static bool exec_pump(struct session *session, uint64_t now_ns)
{
	struct exec *exec = exec_of(session);
	bool over;
	if (!has_started(exec))
		return false;
	if (exec->process.finished)
		return process_deliver(&exec->process, session, now_ns);
	bool moved = process_pump(&exec->process, session, now_ns, &over);
	if (!over)
		return moved;
	if (!process_finish(&exec->process, session->slot, now_ns))
		session_fail(session, &exec->process.problem);
	return true;
}

static uint64_t exec_deadline(const struct session *session)
{
	const struct exec *exec = exec_of(session);
	return has_started(exec) && !exec->process.finished ? process_deadline(&exec->process) : UINT64_MAX;
}

/* A half-received specification cannot be completed over another stream. */
static bool exec_settled(const struct session *session)
{
	return has_started(exec_of(session));
}

bool exec_forget(const struct frame *frame)
{
	struct session *session = session_find(frame->session);
	if (session == NULL || session->kind != &exec_kind || !exec_of(session)->process.finished)
		return false;
	session_close(session);
	return true;
}

static void exec_lost(struct session *session)
{
	if (!has_started(exec_of(session)))
		session_close(session);
}

static void exec_resume(struct session *session, uint8_t *record)
{
	struct exec *exec = exec_of(session);
	const struct launch *launch = &exec->launch;
	uint32_t flags = 0;
	flags |= launch->has_input ? SESSION_FLAG_STDIN : 0;
	flags |= launch->identity.terminal ? SESSION_FLAG_TERMINAL : 0;
	flags |= launch->identity.idle ? SESSION_FLAG_IDLE : 0;
	flags |= launch->lingers ? SESSION_FLAG_LINGER : 0;
	memset(record, 0, SESSION_BYTES);
	put_u32(record, session->id);
	put_u32(record + 4, exec->target);
	put_u32(record + 16, exec->tag);
	put_u64(record + 72, launch->timeout_ns / 1000000);
	put_u32(record + 8, flags | process_resume(&exec->process, record));
	if (!launch->has_input)
		put_u64(record + 32, 0);
}

static void exec_close(struct session *session)
{
	struct exec *exec = exec_of(session);
	spec_close(&exec->spec);
	process_close(&exec->process);
}

static const struct session_kind exec_kind = {
	.class = SESSION_PROCESS,
	.take = exec_take,
	.grant = exec_grant,
	.ready = exec_ready,
	.pump = exec_pump,
	.deadline = exec_deadline,
	.reaped = exec_reaped,
	.settled = exec_settled,
	.lost = exec_lost,
	.resume = exec_resume,
	.close = exec_close,
};
