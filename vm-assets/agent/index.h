/* INDEX: a child walks a disk; the loop relays what it writes. */
#ifndef COPPICE_INDEX_H
#define COPPICE_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "flow.h"
#include "frame.h"
#include "report.h"

struct session;

struct index {
	pid_t child; /* 0: reaped */
	int control;
	struct outflow out;
	bool reported;
	struct report report;
};

/* Handler of the frame; false: malformed. */
bool index_open(const struct frame *frame);
bool index_pump(struct session *session, uint64_t now_ns);
void index_close(struct index *index);

#endif
