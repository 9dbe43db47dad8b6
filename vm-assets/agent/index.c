#include "index.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

#include "bytes.h"
#include "platform.h"
#include "protocol.h"
#include "steps.h"
#include "walk.h"
#include "worker.h"

static bool run(const struct work *work, int out, uint64_t *count, struct problem *problem)
{
	int device = work->number == INDEX_DISK_SCRATCH ? -1 : platform_open_layer(work->number);
	return walk_disk(work->directory, device, out, count, problem);
}

bool index_open(const struct frame *frame)
{
	unsigned disk = get_u16(frame->payload);
	bool scratch = disk == INDEX_DISK_SCRATCH;
	if (!scratch && disk >= LAYERS_COUNT_MAX)
		return false;
	if (scratch ? steps_disks() != DISKS_STATE_FROZEN : disk >= steps_layers()) {
		frame_send_error(frame->session, ENXIO, scratch ? "the scratch is not frozen" : "no such layer");
		return true;
	}
	char path[PATH_MAX];
	if (scratch)
		snprintf(path, sizeof path, "%s/s/upper", platform_prefix());
	else
		snprintf(path, sizeof path, "%s/l/%02u/upper", platform_prefix(), disk);
	int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0) {
		struct problem problem;
		problem_set(&problem, errno, "directory %s", path);
		frame_send_problem(frame->session, &problem);
		return true;
	}
	worker_open(frame->session,
		&(struct work){.name = "index walk", .run = run, .number = disk, .directory = directory, .streams = true});
	return true;
}
