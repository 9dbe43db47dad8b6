#include "dispatch.h"

#include "bytes.h"
#include "connection.h"
#include "emulation/release.h"
#include "exec.h"
#include "files/file.h"
#include "host.h"
#include "index.h"
#include "merge.h"
#include "network/network.h"
#include "protocol.h"
#include "put.h"
#include "quiesce.h"
#include "session.h"
#include "steps.h"

/* The handler of a frame. */
enum handler {
	HANDLER_NOBODY,
	HANDLER_AGENT, /* a request that is answered at once */
	HANDLER_OPENER, /* a request that opens a session */
	HANDLER_SESSION, /* a frame of an open session */
};

static bool grant(const struct frame *frame)
{
	return session_grant(frame->session, get_u32(frame->payload), get_u32(frame->payload + 4));
}

static const struct {
	enum handler handler;
	uint32_t length_min;
	uint32_t length_max;
	bool (*take)(const struct frame *frame); /* NULL: the handler of the session's kind */
} rules[] = {
	[HOST_SYNC] = {HANDLER_AGENT, 24 + SYNC_ENTROPY_BYTES, 24 + SYNC_ENTROPY_BYTES, steps_sync},
	[HOST_MOUNT] = {HANDLER_AGENT, 4, 4, steps_mount},
	[HOST_PUT_OPEN] = {HANDLER_OPENER, 24, FRAME_PAYLOAD_BYTES_MAX, put_open},
	[HOST_PUT_DATA] = {HANDLER_SESSION, 1, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_EXEC_OPEN] = {HANDLER_OPENER, 36, 36, exec_open},
	[HOST_EXEC_SPEC] = {HANDLER_SESSION, 1, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_STDIN] = {HANDLER_SESSION, 0, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_SIGNAL] = {HANDLER_SESSION, 8, 8, NULL},
	[HOST_WINDOW] = {HANDLER_AGENT, 8, 8, grant},
	[HOST_FREEZE] = {HANDLER_AGENT, 0, 0, steps_freeze},
	[HOST_INDEX] = {HANDLER_OPENER, 2, 2, index_open},
	[HOST_MERGE] = {HANDLER_OPENER, 0, 0, merge_open},
	[HOST_RELEASE] = {HANDLER_AGENT, 0, 0, release_disks},
	[HOST_NETWORK] = {HANDLER_AGENT, 4, 4, network_switch},
	[HOST_NET_ACCEPT] = {HANDLER_SESSION, 0, 0, NULL},
	[HOST_NET_REFUSE] = {HANDLER_SESSION, 4, 4, NULL},
	[HOST_NET_DATA] = {HANDLER_SESSION, 1, FRAME_PAYLOAD_BYTES_MAX, NULL},
	[HOST_NET_END] = {HANDLER_SESSION, 0, 0, NULL},
	[HOST_NET_RESET] = {HANDLER_SESSION, 0, 0, NULL},
	[HOST_RESOLVED] = {HANDLER_AGENT, 4, 4, network_resolved},
	[HOST_NET_DIAL] = {HANDLER_OPENER, 4, 4, connection_dial},
	[HOST_HOLD] = {HANDLER_AGENT, 0, 0, steps_hold},
	[HOST_RESIZE] = {HANDLER_SESSION, 4, 4, NULL},
	[HOST_FLUSH] = {HANDLER_OPENER, 0, 0, quiesce_flush},
	[HOST_QUIESCE] = {HANDLER_OPENER, 4, 4, quiesce_open},
	[HOST_THAW] = {HANDLER_SESSION, 0, 0, NULL},
	[HOST_LIMIT] = {HANDLER_SESSION, 8, 8, NULL},
	[HOST_FILE_OPEN] = {HANDLER_OPENER, FILE_OPEN_FIXED_BYTES, FRAME_PAYLOAD_BYTES_MAX, file_open},
	[HOST_FILE_END] = {HANDLER_SESSION, 0, 0, NULL},
	[HOST_FILE_SYNC] = {HANDLER_SESSION, 0, 0, NULL},
	[HOST_RESUME] = {HANDLER_AGENT, 16, 16, host_resume},
	[HOST_FORGET] = {HANDLER_AGENT, 0, 0, exec_forget},
	[HOST_LEAVE] = {HANDLER_AGENT, 0, 0, host_leave},
	[HOST_RECEIPT] = {HANDLER_AGENT, 0, 0, host_receipt},
};

bool dispatch(const struct frame *frame)
{
	if (frame->type >= sizeof rules / sizeof rules[0] || frame->length < rules[frame->type].length_min ||
	    frame->length > rules[frame->type].length_max)
		return false;
	if (host_awaited() && frame->type != HOST_RESUME)
		return false;
	/* During a hold the host may send nothing but the SYNC that ends it. */
	if (steps_held() && frame->type != HOST_SYNC)
		return false;
	struct session *session;
	switch (rules[frame->type].handler) {
	case HANDLER_AGENT:
		return rules[frame->type].take(frame);
	case HANDLER_OPENER:
		/* 0 is the stream itself, and ids with this bit belong to sessions that the guest opens. */
		return frame->session != 0 && (frame->session & SESSION_GUEST_BIT) == 0 && rules[frame->type].take(frame);
	case HANDLER_SESSION:
		session = session_find(frame->session);
		/* The session is over: the host sent the frame before it received the session's last one. */
		return session == NULL || session->kind->take(session, frame);
	case HANDLER_NOBODY:
	default:
		return false;
	}
}
