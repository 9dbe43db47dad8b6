/* Addresses and routes of the guest. */
#ifndef COPPICE_ADDRESSES_H
#define COPPICE_ADDRESSES_H

#include <stdbool.h>

#include "../problem.h"

/* Makes every address outside local to the guest, and gives it a source address for them. */
bool addresses_make_routes(struct problem *problem);

/* Enters the guest's own addresses in `map` from now on. Returns the socket of their changes; -1 on failure. */
int addresses_follow(int map, struct problem *problem);
/* Reads the changes that are known to the kernel now. */
void addresses_update(void);

#endif
