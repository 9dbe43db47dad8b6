#include "exec.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bytes.h"
#include "log.h"
#include "loop.h"
#include "platform.h"
#include "protocol.h"
#include "reaper.h"
#include "session.h"
#include "steps.h"

/* How long output of what outlives the command is still taken. */
#define DRAIN_NS 200000000ULL
/* Far beyond any limit that the service gives; keeps the arithmetic away from overflow. */
#define TIMEOUT_MS_MAX (366ULL * 24 * 3600 * 1000)
#define EXIT_CODE_KILLED (128 + SIGKILL)

/* Standard input that was received and not yet read, per session. */
static uint8_t rings[SESSIONS_COUNT_MAX][WINDOW_BYTES_INITIAL];

static void fail(struct session *session, const struct problem *problem)
{
	frame_send_error(session->id, problem->error, "%s", problem->text);
	session_close(session);
}

bool exec_open(const struct frame *frame)
{
	if (frame->length != 4 + 4 + 8)
		return false;
	uint32_t size = get_u32(frame->payload);
	uint32_t flags = get_u32(frame->payload + 4);
	uint64_t timeout_ms = get_u64(frame->payload + 8);
	if ((flags & ~(uint32_t)EXEC_FLAG_STDIN) != 0)
		return false;
	if (!steps_check(frame->session, true))
		return true;
	struct session *session = session_open(frame->session, SESSION_EXEC);
	if (session == NULL)
		return true;
	struct exec *exec = &session->exec;
	exec->control = -1;
	exec->in.fd = -1;
	exec->out[0].fd = -1;
	exec->out[1].fd = -1;
	exec->has_stdin = (flags & EXEC_FLAG_STDIN) != 0;
	struct problem problem;
	if (timeout_ms == 0 || timeout_ms > TIMEOUT_MS_MAX) {
		problem_set(&problem, EINVAL, "time limit of %llu ms", (unsigned long long)timeout_ms);
		fail(session, &problem);
	} else if (size == 0 || size > EXEC_SPEC_BYTES_MAX) {
		problem_set(&problem, E2BIG, "specification of %u bytes", size);
		fail(session, &problem);
	} else if (!spec_open(&exec->spec, size, &problem)) {
		fail(session, &problem);
	}
	exec->timeout_ns = timeout_ms * 1000000;
	return true;
}

struct pipes {
	int in[2];
	int out[2];
	int err[2];
	int control[2];
};

/* Every descriptor of a command; the agent's ends do not block. */
static bool open_pipes(struct pipes *pipes, bool has_stdin)
{
	int pair[2] = {-1, -1};
	*pipes = (struct pipes){{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
	if (has_stdin && pipe2(pipes->in, O_CLOEXEC) != 0)
		return false;
	if (!has_stdin)
		pipes->in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (pipes->in[0] < 0 || pipe2(pipes->out, O_CLOEXEC) != 0 || pipe2(pipes->err, O_CLOEXEC) != 0)
		return false;
	if (!report_pair(pair))
		return false;
	pipes->control[0] = pair[0];
	pipes->control[1] = pair[1];
	if (has_stdin && fcntl(pipes->in[1], F_SETFL, O_NONBLOCK) != 0)
		return false;
	return fcntl(pipes->out[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(pipes->err[0], F_SETFL, O_NONBLOCK) == 0;
}

static void close_all(const int *fds, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static bool start(struct session *session, struct problem *problem)
{
	struct exec *exec = &session->exec;
	struct pipes pipes;
	if (!open_pipes(&pipes, exec->has_stdin)) {
		problem_set(problem, errno, "pipes of the command");
		close_all(&pipes.in[0], sizeof pipes / sizeof(int));
		return false;
	}
	pid_t pid = platform_fork_reaper(session->slot, problem);
	if (pid == 0) {
		struct reaper reaper = {
			.spec = &exec->spec,
			.stdio = {pipes.in[0], pipes.out[1], pipes.err[1]},
			.control = pipes.control[1],
		};
		reaper_run(&reaper);
	}
	int theirs[4] = {pipes.in[0], pipes.out[1], pipes.err[1], pipes.control[1]};
	close_all(theirs, 4);
	if (pid < 0) {
		int ours[4] = {pipes.in[1], pipes.out[0], pipes.err[0], pipes.control[0]};
		close_all(ours, 4);
		return false;
	}
	exec->reaper = pid;
	exec->control = pipes.control[0];
	inflow_open(&exec->in, pipes.in[1], rings[session->slot]);
	outflow_open(&exec->out[0], pipes.out[0], STREAM_STDOUT);
	outflow_open(&exec->out[1], pipes.err[0], STREAM_STDERR);
	loop_watch(exec->control, session->slot, WATCH_CONTROL);
	if (exec->has_stdin)
		loop_watch(exec->in.fd, session->slot, WATCH_STDIN);
	loop_watch(pipes.out[0], session->slot, WATCH_STDOUT);
	loop_watch(pipes.err[0], session->slot, WATCH_STDERR);
	exec->start_ns = loop_now();
	exec->deadline_ns = exec->start_ns + exec->timeout_ns;
	return true;
}

bool exec_spec(struct session *session, const struct frame *frame)
{
	struct exec *exec = &session->exec;
	struct spec *spec = &exec->spec;
	/* The command runs: this belongs to an EXEC that was refused because its id is in use. */
	if (exec->start_ns != 0)
		return true;
	if (frame->length == 0 || frame->length > spec->size - spec->received)
		return false;
	memcpy(spec->map + spec->received, frame->payload, frame->length);
	spec->received += frame->length;
	if (spec->received < spec->size)
		return true;
	struct problem problem;
	if (!spec_parse(spec, &problem) || !start(session, &problem)) {
		fail(session, &problem);
		return true;
	}
	spec_close(spec);
	return true;
}

bool exec_stdin(struct session *session, const struct frame *frame)
{
	struct exec *exec = &session->exec;
	if (!exec->has_stdin)
		return false;
	/* Standard input may overtake nothing: there is no pipe before the specification is whole. */
	if (exec->start_ns == 0)
		return false;
	return inflow_take(&exec->in, frame->payload, frame->length);
}

bool exec_signal(struct session *session, const struct frame *frame)
{
	struct exec *exec = &session->exec;
	if (frame->length != 4)
		return false;
	uint32_t number = get_u32(frame->payload);
	if (number == 0 || number >= (uint32_t)_NSIG)
		return false;
	/* The reaper delivers it: only it knows whether the command still has its pid. */
	if (exec->control >= 0 && send(exec->control, &number, sizeof number, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_line("session %u: signal %u was not delivered", session->id, number);
	return true;
}

static bool take_reports(struct session *session, uint64_t now_ns)
{
	struct exec *exec = &session->exec;
	struct report report;
	bool moved = false;
	while (frame_can_answer() && report_receive(exec->control, &report) != REPORT_NONE) {
		moved = true;
		if (report.kind == REPORT_FAILED) {
			exec->failed = true;
			exec->problem = report.problem;
		} else if (report.kind == REPORT_STARTED) {
			uint8_t payload[4];
			put_u32(payload, (uint32_t)report.value);
			exec->started = true;
			exec->command = report.value;
			frame_send(AGENT_STARTED, session->id, payload, sizeof payload);
		} else if (report.kind == REPORT_EXITED && !exec->killed) {
			exec->exited = true;
			exec->status = report.value;
			exec->end_ns = now_ns;
			exec->deadline_ns = now_ns + DRAIN_NS;
			exec->out[0].hold_ns = 0;
			exec->out[1].hold_ns = 0;
		}
	}
	return moved;
}

static bool streams_ended(const struct exec *exec)
{
	return exec->out[0].fd < 0 && exec->out[1].fd < 0;
}

/* Kills when the time is up, and what the command left behind once its output was drained. */
static void enforce(struct session *session, uint64_t now_ns)
{
	struct exec *exec = &session->exec;
	if (exec->killed || exec->reaper == 0)
		return;
	bool late = now_ns >= exec->deadline_ns;
	if (exec->exited ? !late && !streams_ended(exec) : !late)
		return;
	if (!exec->exited) {
		exec->timed_out = true;
		exec->end_ns = now_ns;
	}
	exec->killed = true;
	platform_kill(session->slot, exec->reaper, exec->command);
}

static uint32_t exit_code(int status)
{
	return (uint32_t)(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

/* The last frame, once everything is dead and every byte is sent. */
static void finish(struct session *session, uint64_t now_ns)
{
	struct exec *exec = &session->exec;
	struct usage usage = {0};
	platform_release(session->slot, &usage);
	if (exec->failed || !exec->started) {
		if (!exec->failed && exec->timed_out)
			problem_set(&exec->problem, ETIMEDOUT, "the time was up before the command started");
		else if (!exec->failed)
			problem_set(&exec->problem, ECHILD, "the reaper died before the command started");
		fail(session, &exec->problem);
		return;
	}
	uint32_t flags = 0;
	/* A reaper that dies by itself was told to by reboot(2); its death is what became of the command. */
	uint32_t code = exit_code(exec->exited ? exec->status : exec->reaper_status);
	if (exec->timed_out) {
		flags |= EXIT_FLAG_TIMED_OUT;
		code = EXIT_CODE_KILLED;
	}
	if (usage.oom_killed)
		flags |= EXIT_FLAG_OOM_KILLED;
	uint64_t end_ns = exec->end_ns != 0 ? exec->end_ns : now_ns;
	uint8_t payload[4 + 4 + 8 + 8 + 8];
	put_u32(payload, flags);
	put_u32(payload + 4, code);
	put_u64(payload + 8, usage.cpu_us);
	put_u64(payload + 16, usage.peak_bytes);
	put_u64(payload + 24, (end_ns - exec->start_ns) / 1000);
	frame_send(AGENT_EXIT, session->id, payload, sizeof payload);
	session_close(session);
}

bool exec_pump(struct session *session, uint64_t now_ns)
{
	struct exec *exec = &session->exec;
	if (exec->start_ns == 0)
		return false;
	bool moved = take_reports(session, now_ns);
	/* STARTED comes before the first output, whoever of reaper and command was quicker. */
	if (exec->started) {
		moved |= session_pump_stream(session, &exec->out[0], WATCH_STDOUT, now_ns);
		moved |= session_pump_stream(session, &exec->out[1], WATCH_STDERR, now_ns);
	}
	moved |= inflow_pump(&exec->in, session->id);
	enforce(session, now_ns);
	if (exec->reaper != 0 || !frame_can_answer())
		return moved;
	/* What the reaper reported before it died is there by now. */
	if (take_reports(session, now_ns))
		return true;
	if (exec->started && !streams_ended(exec))
		return moved;
	finish(session, now_ns);
	return true;
}

uint64_t exec_deadline(const struct exec *exec)
{
	if (exec->start_ns == 0)
		return UINT64_MAX;
	uint64_t earliest = exec->reaper == 0 || exec->killed ? UINT64_MAX : exec->deadline_ns;
	for (int i = 0; i < 2 && exec->started; i++) {
		uint64_t deadline = outflow_deadline(&exec->out[i]);
		if (deadline < earliest)
			earliest = deadline;
	}
	return earliest;
}

void exec_close(struct exec *exec)
{
	spec_close(&exec->spec);
	inflow_close(&exec->in);
	outflow_close(&exec->out[0]);
	outflow_close(&exec->out[1]);
	if (exec->control >= 0)
		close(exec->control);
	exec->control = -1;
}
