#include "steps.h"

#include <errno.h>

#include "bytes.h"
#include "log.h"
#include "platform.h"
#include "protocol.h"
#include "session.h"

static bool failed;
static struct problem failure;
static enum disks_state disks = DISKS_STATE_NONE;
static unsigned layer_count;
static bool held;

void steps_fail(const struct problem *problem)
{
	if (!failed)
		failure = *problem;
	failed = true;
}

void steps_fail_request(const struct frame *frame, const struct problem *problem)
{
	steps_fail(problem);
	frame_send_problem(frame->session, problem);
}

bool steps_check(uint32_t session, bool needs_root)
{
	if (failed) {
		frame_send_error(session, ECANCELED, "an earlier step failed: %s", failure.text);
		return false;
	}
	if (needs_root && disks != DISKS_STATE_ROOT) {
		frame_send_error(session, ENXIO, "no root file system is mounted");
		return false;
	}
	return true;
}

enum disks_state steps_disks(void)
{
	return disks;
}

unsigned steps_layers(void)
{
	return layer_count;
}

static void set_held(bool hold)
{
	held = hold;
	log_mute(hold);
}

bool steps_held(void)
{
	return held;
}

void steps_end_hold(void)
{
	set_held(false);
}

bool steps_hold(const struct frame *frame)
{
	if (!session_all_settled()) {
		frame_send_error(frame->session, EBUSY, "requests are under way");
		return true;
	}
	frame_send_done(frame->session, 0);
	set_held(true);
	return true;
}

void steps_refuse_version(const struct frame *frame, uint32_t version)
{
	frame_send_error(frame->session, EPROTO, "host speaks protocol %u, agent %u", version, PROTOCOL_VERSION);
}

bool steps_sync(const struct frame *frame)
{
	uint32_t version = get_u32(frame->payload);
	struct problem problem;
	set_held(false);
	if (version != PROTOCOL_VERSION) {
		steps_refuse_version(frame, version);
		return true;
	}
	if (!platform_set_clock(get_u64(frame->payload + 16), &problem) ||
	    !platform_reseed(frame->payload + 24, SYNC_ENTROPY_BYTES, &problem)) {
		frame_send_problem(frame->session, &problem);
		return true;
	}
	failed = false;
	frame_send(AGENT_SYNCED, frame->session, frame->payload + 8, 8);
	return true;
}

bool steps_check_idle(const struct frame *frame)
{
	if (session_any())
		frame_send_error(frame->session, EBUSY, "sessions are alive");
	return !session_any();
}

bool steps_mount(const struct frame *frame)
{
	unsigned layers = get_u16(frame->payload);
	unsigned flags = get_u16(frame->payload + 2);
	if (layers == 0 || layers > LAYERS_COUNT_MAX || flags > MOUNT_FLAG_BARE)
		return false;
	enum mounts mounts = flags == MOUNT_FLAG_SCRATCH ? MOUNTS_ROOT : flags == MOUNT_FLAG_BARE ? MOUNTS_BARE : MOUNTS_LAYERS;
	if (!steps_check(frame->session, false))
		return true;
	struct problem problem;
	if (disks != DISKS_STATE_NONE) {
		frame_send_error(frame->session, EBUSY, "disks are mounted already");
		return true;
	}
	/* The loop blocks during the mount, but before the first mount there are no sessions. */
	if (!platform_mount(layers, mounts, &problem)) {
		steps_fail_request(frame, &problem);
		return true;
	}
	layer_count = layers;
	disks = mounts == MOUNTS_ROOT ? DISKS_STATE_ROOT : mounts == MOUNTS_BARE ? DISKS_STATE_BARE : DISKS_STATE_LAYERS;
	frame_send_done(frame->session, 0);
	return true;
}

bool steps_freeze(const struct frame *frame)
{
	if (disks != DISKS_STATE_ROOT && disks != DISKS_STATE_BARE) {
		frame_send_error(frame->session, ENXIO, "no scratch is mounted");
		return true;
	}
	if (!steps_check_idle(frame))
		return true;
	struct problem problem;
	uint64_t trimmed = 0;
	/* After a partial freeze there is no root to run commands in, so the old state cannot be restored. */
	disks = DISKS_STATE_LAYERS;
	if (!platform_freeze(&trimmed, &problem)) {
		steps_fail_request(frame, &problem);
		return true;
	}
	disks = DISKS_STATE_FROZEN;
	frame_send_done(frame->session, trimmed);
	return true;
}

void steps_forget_disks(void)
{
	layer_count = 0;
	disks = DISKS_STATE_NONE;
}
