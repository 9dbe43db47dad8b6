#include "dispatch.h"

#include <errno.h>

#include "bytes.h"
#include "connection.h"
#include "emulation/release.h"
#include "exec.h"
#include "index.h"
#include "merge.h"
#include "protocol.h"
#include "put.h"
#include "quiesce.h"
#include "session.h"
#include "steps.h"

/* Who takes a frame. */
enum taker {
	TAKER_NOBODY,
	TAKER_AGENT, /* a request that is answered at once */
	TAKER_OPENER, /* the request that a session begins with */
	TAKER_SESSION, /* a frame of a session that is alive */
};

static bool grant(const struct frame *frame)
{
	return session_grant(frame->session, get_u32(frame->payload), get_u32(frame->payload + 4));
}

/* The protocol has this request, and this agent does not. */
static bool refuse(const struct frame *frame)
{
	frame_send_error(frame->session, ENOSYS, "request %u: this agent cannot do that", frame->type);
	return true;
}

/* The agent asked for no name and opened no connection: the answer is to something that is over. */
static bool drop(const struct frame *frame)
{
	(void)frame;
	return true;
}

static const struct {
	enum taker taker;
	uint32_t length_min;
	uint32_t length_max;
	bool (*take)(const struct frame *frame); /* NULL: the session's kind does */
} rules[] = {
	[HOST_SYNC] = {TAKER_AGENT, 24 + SYNC_ENTROPY_BYTES, 24 + SYNC_ENTROPY_BYTES, steps_sync},
	[HOST_MOUNT] = {TAKER_AGENT, 4, 4, steps_mount},
	[HOST_PUT_OPEN] = {TAKER_OPENER, 24, FRAME_PAYLOAD_BYTES_MAX, put_open},
	[HOST_PUT_DATA] = {TAKER_SESSION, 1, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_EXEC_OPEN] = {TAKER_OPENER, 32, 32, exec_open},
	[HOST_EXEC_SPEC] = {TAKER_SESSION, 1, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_STDIN] = {TAKER_SESSION, 0, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_SIGNAL] = {TAKER_SESSION, 8, 8, NULL},
	[HOST_WINDOW] = {TAKER_AGENT, 8, 8, grant},
	[HOST_FREEZE] = {TAKER_AGENT, 0, 0, steps_freeze},
	[HOST_INDEX] = {TAKER_OPENER, 2, 2, index_open},
	[HOST_MERGE] = {TAKER_OPENER, 0, 0, merge_open},
	[HOST_RELEASE] = {TAKER_AGENT, 0, 0, release_disks},
	[HOST_NETWORK] = {TAKER_AGENT, 4, 4, refuse},
	[HOST_NET_ACCEPT] = {TAKER_SESSION, 0, 0, NULL},
	[HOST_NET_REFUSE] = {TAKER_SESSION, 4, 4, NULL},
	[HOST_NET_DATA] = {TAKER_SESSION, 1, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_NET_END] = {TAKER_SESSION, 0, 0, NULL},
	[HOST_NET_RESET] = {TAKER_SESSION, 0, 0, NULL},
	[HOST_RESOLVED] = {TAKER_AGENT, 4, 4, drop},
	[HOST_NET_DIAL] = {TAKER_OPENER, 4, 4, connection_dial},
	[HOST_HOLD] = {TAKER_AGENT, 0, 0, steps_hold},
	[HOST_RESIZE] = {TAKER_SESSION, 4, 4, NULL},
	[HOST_FLUSH] = {TAKER_OPENER, 0, 0, quiesce_flush},
	[HOST_QUIESCE] = {TAKER_OPENER, 4, 4, quiesce_open},
	[HOST_THAW] = {TAKER_SESSION, 0, 0, NULL},
	[HOST_LIMIT] = {TAKER_SESSION, 8, 8, NULL},
};

bool dispatch(const struct frame *frame)
{
	if (frame->type >= sizeof rules / sizeof rules[0] || frame->length < rules[frame->type].length_min ||
	    frame->length > rules[frame->type].length_max)
		return false;
	/* The host promised silence until it ends the hold. */
	if (steps_held() && frame->type != HOST_SYNC)
		return false;
	struct session *session;
	switch (rules[frame->type].taker) {
	case TAKER_AGENT:
		return rules[frame->type].take(frame);
	case TAKER_OPENER:
		/* 0 is the stream itself; sessions with this bit are opened by the guest. */
		return frame->session != 0 && (frame->session & SESSION_GUEST_BIT) == 0 && rules[frame->type].take(frame);
	case TAKER_SESSION:
		session = session_find(frame->session);
		/* Frames of a session that is over crossed its last one on the way. */
		return session == NULL || session->kind->take(session, frame);
	case TAKER_NOBODY:
	default:
		return false;
	}
}
