/* Who asked a question: the sender of a datagram, or a client of the name server over TCP. */
#ifndef COPPICE_NETWORK_ASKER_H
#define COPPICE_NETWORK_ASKER_H

#include <stdbool.h>
#include <stdint.h>

#include "address.h"

struct asker {
	bool stream;
	/* Of a datagram. */
	struct tuple tuple;
	uint32_t interface;
	/* Of a client; `number` distinguishes clients that had the same slot. */
	unsigned slot;
	uint32_t number;
};

#endif
