#include "release.h"

#include <errno.h>

#include "../platform.h"
#include "../steps.h"

bool release_disks(const struct frame *frame)
{
	enum disks_state disks = steps_disks();
	if (disks != DISKS_STATE_LAYERS && disks != DISKS_STATE_FROZEN) {
		frame_send_error(frame->session, ENXIO, "no disks can be released");
		return true;
	}
	if (!steps_check_idle(frame))
		return true;
	struct problem problem;
	if (!platform_release_disks(steps_layers(), disks == DISKS_STATE_FROZEN, &problem)) {
		steps_fail_request(frame, &problem);
		return true;
	}
	steps_forget_disks();
	frame_send_done(frame->session, 0);
	return true;
}
