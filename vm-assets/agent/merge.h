/* MERGE: a child makes one layer out of all that are mounted; the loop only waits for its report. */
#ifndef COPPICE_MERGE_H
#define COPPICE_MERGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "frame.h"
#include "report.h"

struct session;

struct merge {
	pid_t child; /* 0: reaped */
	int control;
	bool reported;
	struct report report;
};

/* Handler of the frame; false: malformed. */
bool merge_open(const struct frame *frame);
bool merge_pump(struct session *session);
void merge_close(struct merge *merge);

#endif
