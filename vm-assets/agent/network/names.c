#include "names.h"

#include "../budget.h"
#include "../protocol.h"

/* Addresses from 198.18.1.0 to 198.19.255.255, of a range that is reserved for tests of network devices. */
#define SYNTHETIC_FIRST 0xc6120100U
#define SYNTHETIC_LAST 0xc613ffffU

/* Arrays instead of an array of entries: a search touches only what it compares. */
static struct {
	unsigned count;
	uint32_t next_number; /* numbers that were given out */
	uint64_t clock; /* counts uses */
	uint32_t hashes[NAMES_COUNT_MAX];
	uint32_t numbers[NAMES_COUNT_MAX];
	uint64_t used[NAMES_COUNT_MAX];
	uint16_t holders[NAMES_COUNT_MAX];
	uint8_t sizes[NAMES_COUNT_MAX];
	char texts[NAMES_COUNT_MAX][NAME_BYTES_MAX];
} names;

_Static_assert(sizeof names <= NAMES_BYTES, "the budget counts the table");
_Static_assert(NAMES_COUNT_MAX > CONNECTIONS_COUNT_MAX, "not every name can be held by a connection");

/* FNV-1a. */
static uint32_t hash_of(const char *name, size_t size)
{
	uint32_t hash = 2166136261U;
	for (size_t i = 0; i < size; i++)
		hash = (hash ^ (uint8_t)name[i]) * 16777619U;
	return hash;
}

/* A free entry, or the least recently used one that no connection holds. */
static unsigned make_room(void)
{
	if (names.count < NAMES_COUNT_MAX)
		return names.count++;
	unsigned oldest = NAMES_COUNT_MAX;
	for (unsigned i = 0; i < NAMES_COUNT_MAX; i++)
		if (names.holders[i] == 0 && (oldest == NAMES_COUNT_MAX || names.used[i] < names.used[oldest]))
			oldest = i;
	return oldest;
}

int names_take(const char *name, size_t size)
{
	uint32_t hash = hash_of(name, size);
	for (unsigned i = 0; i < names.count; i++)
		if (names.hashes[i] == hash && names.sizes[i] == size && memcmp(names.texts[i], name, size) == 0) {
			names.used[i] = ++names.clock;
			return (int)i;
		}
	if (names.next_number > SYNTHETIC_LAST - SYNTHETIC_FIRST)
		return NAMES_NONE;
	unsigned entry = make_room();
	names.hashes[entry] = hash;
	names.numbers[entry] = names.next_number++;
	names.used[entry] = ++names.clock;
	names.holders[entry] = 0;
	names.sizes[entry] = (uint8_t)size;
	memcpy(names.texts[entry], name, size);
	return (int)entry;
}

int names_of_address(const uint8_t address[ADDRESS_BYTES])
{
	uint32_t value = get_net32(address + ADDRESS_IPV4_AT);
	if (!address_is_ipv4(address) || value < SYNTHETIC_FIRST || value - SYNTHETIC_FIRST >= names.next_number)
		return NAMES_NONE;
	for (unsigned i = 0; i < names.count; i++)
		if (names.numbers[i] == value - SYNTHETIC_FIRST)
			return (int)i;
	return NAMES_NONE;
}

const char *names_text(int entry, size_t *size)
{
	*size = names.sizes[entry];
	return names.texts[entry];
}

void names_address(int entry, uint8_t ipv4[4])
{
	put_net32(ipv4, SYNTHETIC_FIRST + names.numbers[entry]);
}

void names_hold(int entry)
{
	if (entry == NAMES_NONE)
		return;
	names.holders[entry]++;
	names.used[entry] = ++names.clock;
}

void names_release(int entry)
{
	if (entry != NAMES_NONE)
		names.holders[entry]--;
}
