/* The operations of FILE_OPEN, in a visitor. `count` is the value of DONE. Records go to the stream of place.h. */
#ifndef COPPICE_FILE_OPERATIONS_H
#define COPPICE_FILE_OPERATIONS_H

#include "request.h"

bool content_read(struct request *request, uint64_t *count, struct problem *problem);
bool content_write(struct request *request, uint64_t *count, struct problem *problem);
bool content_join(struct request *request, uint64_t *count, struct problem *problem);
bool entries_stat(struct request *request, uint64_t *count, struct problem *problem);
bool entries_list(struct request *request, uint64_t *count, struct problem *problem);
bool entries_make_directory(struct request *request, uint64_t *count, struct problem *problem);
bool entries_change(struct request *request, uint64_t *count, struct problem *problem);
bool tree_remove(struct request *request, uint64_t *count, struct problem *problem);
bool tree_move(struct request *request, uint64_t *count, struct problem *problem);
bool watch_run(struct request *request, uint64_t *count, struct problem *problem);

#endif
