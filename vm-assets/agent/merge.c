#include "merge.h"

#include <errno.h>

#include "steps.h"
#include "union.h"
#include "worker.h"

static bool run(const struct work *work, int out, uint64_t *count, struct problem *problem)
{
	(void)out;
	return union_layers(work->number, count, problem);
}

bool merge_open(const struct frame *frame)
{
	if (!steps_check(frame->session, false))
		return true;
	if (steps_disks() != DISKS_STATE_BARE) {
		frame_send_error(frame->session, ENXIO, "no bare scratch is mounted");
		return true;
	}
	worker_open(frame->session,
		&(struct work){.name = "merge", .run = run, .number = steps_layers(), .directory = -1});
	return true;
}
