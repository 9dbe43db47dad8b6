/* Packets that the agent reads and writes itself. The functions have no state and make no system calls. */
#ifndef COPPICE_NETWORK_PACKETS_H
#define COPPICE_NETWORK_PACKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "address.h"

/* A held SYN as the filter copies it: the first bytes of its IP packet, its TCP header, the header's length. */
#define HELD_IP_BYTES 40
#define HELD_TCP_BYTES_MAX 60
#define HELD_BYTES (HELD_IP_BYTES + HELD_TCP_BYTES_MAX + 4)
/* Longest payload of a datagram. */
#define DATAGRAM_BYTES_MAX 1024
#define PACKET_BYTES_MAX (40 + 8 + DATAGRAM_BYTES_MAX)

struct syn {
	struct tuple tuple;
	uint32_t sequence;
	uint8_t header[HELD_TCP_BYTES_MAX]; /* the TCP header with its options */
	size_t header_bytes;
};

/* Reads a held SYN, whose bytes may be anything. Returns false when it is not a plain SYN of IPv4 or IPv6. */
bool packets_read_syn(const uint8_t record[HELD_BYTES], struct syn *syn);

/* These write a complete IP packet of at most PACKET_BYTES_MAX, and return its length. */
size_t packets_syn(const struct syn *syn, uint8_t *packet);
/* The answer of a host on which no program listens. */
size_t packets_reset(const struct syn *syn, uint8_t *packet);
/* "Destination unreachable" with the code of each family. */
size_t packets_unreachable(const struct syn *syn, uint8_t code_ipv4, uint8_t code_ipv6, uint8_t *packet);
/* A UDP datagram from the tuple's local end to its remote one. */
size_t packets_datagram(const struct tuple *tuple, const uint8_t *payload, size_t size, uint8_t *packet);

#endif
