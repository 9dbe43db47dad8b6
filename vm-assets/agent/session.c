#include "session.h"

#include <errno.h>
#include <string.h>

#include "frame.h"
#include "loop.h"
#include "protocol.h"

static struct session sessions[SESSIONS_COUNT_MAX];

struct session *session_find(uint32_t id)
{
	for (unsigned slot = 0; slot < SESSIONS_COUNT_MAX; slot++)
		if (sessions[slot].kind != SESSION_FREE && sessions[slot].id == id)
			return &sessions[slot];
	return NULL;
}

struct session *session_open(uint32_t id, enum session_kind kind)
{
	if (session_find(id) != NULL) {
		frame_send_error(id, EEXIST, "session %u is alive", id);
		return NULL;
	}
	for (unsigned slot = 0; slot < SESSIONS_COUNT_MAX; slot++) {
		struct session *session = &sessions[slot];
		if (session->kind != SESSION_FREE)
			continue;
		memset(session, 0, sizeof *session);
		session->kind = kind;
		session->id = id;
		session->slot = slot;
		return session;
	}
	frame_send_error(id, EAGAIN, "%u sessions are alive", SESSIONS_COUNT_MAX);
	return NULL;
}

void session_close(struct session *session)
{
	switch (session->kind) {
	case SESSION_PUT:
		put_close(&session->put);
		break;
	case SESSION_EXEC:
		exec_close(&session->exec);
		break;
	case SESSION_INDEX:
		index_close(&session->index);
		break;
	case SESSION_MERGE:
		merge_close(&session->merge);
		break;
	case SESSION_FREE:
		break;
	}
	session->kind = SESSION_FREE;
}

bool session_any(void)
{
	for (unsigned slot = 0; slot < SESSIONS_COUNT_MAX; slot++)
		if (sessions[slot].kind != SESSION_FREE)
			return true;
	return false;
}

void session_ready(unsigned slot, enum watch watch)
{
	struct session *session = &sessions[slot];
	if (session->kind == SESSION_INDEX && watch == WATCH_STDOUT)
		session->index.out.readable = true;
	if (session->kind != SESSION_EXEC)
		return;
	if (watch == WATCH_STDIN)
		session->exec.in.writable = true;
	else if (watch == WATCH_STDOUT)
		session->exec.out[0].readable = true;
	else if (watch == WATCH_STDERR)
		session->exec.out[1].readable = true;
}

bool session_pump_stream(const struct session *session, struct outflow *flow, enum watch watch, uint64_t now_ns)
{
	bool moved = outflow_pump(flow, session->id, now_ns);
	if (flow->idle)
		loop_watch_again(flow->fd, session->slot, watch);
	flow->idle = false;
	return moved;
}

void session_reaped(pid_t pid, int status)
{
	for (unsigned slot = 0; slot < SESSIONS_COUNT_MAX; slot++) {
		struct session *session = &sessions[slot];
		if (session->kind == SESSION_INDEX && session->index.child == pid)
			session->index.child = 0;
		if (session->kind == SESSION_MERGE && session->merge.child == pid)
			session->merge.child = 0;
		if (session->kind == SESSION_EXEC && session->exec.reaper == pid) {
			session->exec.reaper = 0;
			session->exec.reaper_status = status;
		}
	}
}

bool session_grant(uint32_t id, uint32_t stream, uint32_t bytes)
{
	if (stream != STREAM_STDOUT && stream != STREAM_STDERR)
		return false;
	struct session *session = session_find(id);
	/* Credit for a session that has just ended crosses its last frame on the way. */
	if (session == NULL)
		return true;
	if (session->kind == SESSION_PUT || session->kind == SESSION_MERGE ||
	    (session->kind == SESSION_INDEX && stream != STREAM_STDOUT))
		return false;
	if (session->kind == SESSION_INDEX)
		outflow_grant(&session->index.out, bytes);
	else
		outflow_grant(&session->exec.out[stream - STREAM_STDOUT], bytes);
	return true;
}

bool session_pump(uint64_t now_ns)
{
	bool moved = false;
	for (unsigned slot = 0; slot < SESSIONS_COUNT_MAX; slot++) {
		if (sessions[slot].kind == SESSION_EXEC)
			moved |= exec_pump(&sessions[slot], now_ns);
		else if (sessions[slot].kind == SESSION_INDEX)
			moved |= index_pump(&sessions[slot], now_ns);
		else if (sessions[slot].kind == SESSION_MERGE)
			moved |= merge_pump(&sessions[slot]);
	}
	return moved;
}

uint64_t session_deadline(void)
{
	uint64_t earliest = UINT64_MAX;
	for (unsigned slot = 0; slot < SESSIONS_COUNT_MAX; slot++) {
		uint64_t deadline = UINT64_MAX;
		if (sessions[slot].kind == SESSION_EXEC)
			deadline = exec_deadline(&sessions[slot].exec);
		else if (sessions[slot].kind == SESSION_INDEX)
			deadline = outflow_deadline(&sessions[slot].index.out);
		if (deadline < earliest)
			earliest = deadline;
	}
	return earliest;
}
