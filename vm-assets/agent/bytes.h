/* Little-endian fields of frames and records. */
#ifndef COPPICE_BYTES_H
#define COPPICE_BYTES_H

#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the agent copies integers to the wire as they are");

static inline uint16_t get_u16(const uint8_t *at)
{
	uint16_t value;
	memcpy(&value, at, sizeof value);
	return value;
}

static inline uint32_t get_u32(const uint8_t *at)
{
	uint32_t value;
	memcpy(&value, at, sizeof value);
	return value;
}

static inline uint64_t get_u64(const uint8_t *at)
{
	uint64_t value;
	memcpy(&value, at, sizeof value);
	return value;
}

static inline void put_u16(uint8_t *at, uint16_t value)
{
	memcpy(at, &value, sizeof value);
}

static inline void put_u32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof value);
}

static inline void put_u64(uint8_t *at, uint64_t value)
{
	memcpy(at, &value, sizeof value);
}

#endif
