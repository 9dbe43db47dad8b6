/*
 * Addresses of the guest's network: 16 bytes in network order, IPv4 as ::ffff:a.b.c.d. Ports are in host order.
 */
#ifndef COPPICE_NETWORK_ADDRESS_H
#define COPPICE_NETWORK_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ADDRESS_BYTES 16
/* Where an IPv4 address begins. */
#define ADDRESS_IPV4_AT 12

/* The two ends of a connection or a datagram, from the agent's point of view: `local` is the one outside. */
struct tuple {
	uint8_t remote[ADDRESS_BYTES];
	uint8_t local[ADDRESS_BYTES];
	uint16_t remote_port;
	uint16_t local_port;
};

_Static_assert(sizeof(struct tuple) == 2 * ADDRESS_BYTES + 4, "tuples are compared as bytes");

static inline bool address_is_ipv4(const uint8_t address[ADDRESS_BYTES])
{
	static const uint8_t prefix[ADDRESS_IPV4_AT] = {[10] = 0xff, [11] = 0xff};
	return memcmp(address, prefix, sizeof prefix) == 0;
}

static inline bool address_is_loopback(const uint8_t address[ADDRESS_BYTES])
{
	static const uint8_t ipv6[ADDRESS_BYTES] = {[15] = 1};
	return (address_is_ipv4(address) && address[ADDRESS_IPV4_AT] == 127) || memcmp(address, ipv6, sizeof ipv6) == 0;
}

static inline void address_of_ipv4(uint8_t address[ADDRESS_BYTES], const uint8_t ipv4[4])
{
	memset(address, 0, 10);
	memset(address + 10, 0xff, 2);
	memcpy(address + ADDRESS_IPV4_AT, ipv4, 4);
}

static inline bool tuple_equal(const struct tuple *a, const struct tuple *b)
{
	return memcmp(a, b, sizeof *a) == 0;
}

/* Fields in network order. */
static inline uint16_t get_net16(const uint8_t *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t get_net32(const uint8_t *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline void put_net16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static inline void put_net32(uint8_t *at, uint32_t value)
{
	put_net16(at, (uint16_t)(value >> 16));
	put_net16(at + 2, (uint16_t)value);
}

#endif
