/* Poller keys of the network's descriptors: this bit, the source, and the slot of a client from bit 8. */
#ifndef COPPICE_NETWORK_SOURCE_H
#define COPPICE_NETWORK_SOURCE_H

#include <stdint.h>

#define KEY_NETWORK 0x40U

enum network_source {
	SOURCE_HELD,
	SOURCE_ACCEPTS,
	SOURCE_ADDRESSES,
	SOURCE_DATAGRAMS,
	SOURCE_CLIENT_LISTENER,
	SOURCE_CLIENT,
};

static inline uint64_t network_key(enum network_source source, unsigned slot)
{
	return KEY_NETWORK | (uint64_t)source | (uint64_t)slot << 8;
}

#endif
