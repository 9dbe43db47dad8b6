/*
 * The guest's network as the kernel sees it: addresses outside are local, and packets for them go to the agent's sockets.
 * It needs no device, no module, and nothing of the image.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../budget.h"
#include "../duplex.h"
#include "../platform.h"
#include "addresses.h"
#include "bpf.h"
#include "programs.h"

#define PAGE_BYTES 4096
/* The guest's own addresses: with more, those beyond cannot be reached from inside. */
#define OWN_COUNT_MAX 1024
#define RECORD_HEAD_BYTES 8
#define RECORD_ALIGNMENT 8

static struct network_maps maps;
static int raw_ipv4 = -1;
static int raw_ipv6 = -1;

/* The ring of held SYNs. A program with privileges may write to it, so its contents are not trusted. */
static struct {
	uint64_t *consumer;
	const uint64_t *producer;
	const uint8_t *data;
	uint64_t position; /* what was read */
} ring;

static bool make_maps(struct problem *problem)
{
	const uint32_t zero = 0;
	maps.sockets = bpf_map(BPF_MAP_TYPE_SOCKMAP, 4, 8, SOCKETS_COUNT, 0, "map of sockets", problem);
	maps.own = maps.sockets < 0 ? -1 : bpf_map(BPF_MAP_TYPE_HASH, ADDRESS_BYTES, 4, OWN_COUNT_MAX, BPF_F_NO_PREALLOC,
						  "map of addresses", problem);
	maps.flags = maps.own < 0 ? -1 : bpf_map(BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0, "map of flags", problem);
	maps.held = maps.flags < 0 ? -1 : bpf_map(BPF_MAP_TYPE_RINGBUF, 0, 0, HELD_RING_BYTES, 0, "ring of SYNs", problem);
	if (maps.held < 0)
		return false;
	uint8_t *first = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, maps.held, 0);
	/* The data follow twice, so that no record is divided. */
	uint8_t *rest = mmap(NULL, PAGE_BYTES + 2 * HELD_RING_BYTES, PROT_READ, MAP_SHARED, maps.held, PAGE_BYTES);
	if (first == MAP_FAILED || rest == MAP_FAILED)
		return problem_set(problem, errno, "ring of SYNs");
	madvise(rest, PAGE_BYTES + 2 * HELD_RING_BYTES, MADV_DONTFORK);
	ring.consumer = (uint64_t *)first;
	ring.producer = (const uint64_t *)rest;
	ring.data = rest + PAGE_BYTES;
	return bpf_set(maps.flags, &zero, &(const uint32_t){1}) ? true : problem_set(problem, errno, "map of flags");
}

/* Opens a socket on a port of the kernel's choice, for both families and for every address. `backlog`, `buffer`: of a listener. */
static int serve(int type, int backlog, int buffer)
{
	const struct sockaddr_in6 any = {.sin6_family = AF_INET6};
	const int on = 1;
	const int off = 0;
	int fd = socket(AF_INET6, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0 ||
		setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &on, sizeof on) != 0 ||
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on) != 0 ||
		(type == SOCK_STREAM && !duplex_limit(fd, buffer)) || bind(fd, (const struct sockaddr *)&any, sizeof any) != 0 ||
		(type == SOCK_STREAM && listen(fd, backlog) != 0))
		return -1;
	return fd;
}

static bool open_sockets(struct network_sockets *sockets, struct problem *problem)
{
	const uint32_t mark = NETWORK_MARK;
	const int on = 1;
	const int queue = QUESTION_QUEUE_BYTES;
	/* Nothing is read from the raw sockets. The kernel takes the smallest size. */
	const int least = 0;
	sockets->listener = serve(SOCK_STREAM, ACCEPTS_COUNT_MAX, SOCKET_BUFFER_BYTES);
	sockets->question_listener = serve(SOCK_STREAM, QUESTION_CLIENTS_COUNT_MAX, QUESTION_SOCKET_BUFFER_BYTES);
	sockets->questions = serve(SOCK_DGRAM, 0, 0);
	if (sockets->listener < 0 || sockets->question_listener < 0 || sockets->questions < 0 ||
		setsockopt(sockets->questions, SOL_SOCKET, SO_RCVBUFFORCE, &queue, sizeof queue) != 0)
		return problem_set(problem, errno, "sockets of the network");
	raw_ipv4 = socket(AF_INET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_RAW);
	raw_ipv6 = socket(AF_INET6, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_RAW);
	if (raw_ipv4 < 0 || raw_ipv6 < 0 || setsockopt(raw_ipv4, SOL_SOCKET, SO_MARK, &mark, sizeof mark) != 0 ||
		setsockopt(raw_ipv6, SOL_SOCKET, SO_MARK, &mark, sizeof mark) != 0 ||
		setsockopt(raw_ipv6, IPPROTO_IPV6, IPV6_HDRINCL, &on, sizeof on) != 0 ||
		setsockopt(raw_ipv4, SOL_SOCKET, SO_RCVBUF, &least, sizeof least) != 0 ||
		setsockopt(raw_ipv6, SOL_SOCKET, SO_RCVBUF, &least, sizeof least) != 0)
		return problem_set(problem, errno, "raw sockets");
	const int fds[SOCKETS_COUNT] = {
		[SOCKET_CONNECTIONS] = sockets->listener,
		[SOCKET_QUESTION_STREAMS] = sockets->question_listener,
		[SOCKET_QUESTIONS] = sockets->questions,
	};
	for (uint32_t i = 0; i < SOCKETS_COUNT; i++)
		if (!bpf_set(maps.sockets, &i, &(const uint64_t){(uint64_t)fds[i]}))
			return problem_set(problem, errno, "map of sockets");
	return true;
}

bool platform_network_open(struct network_sockets *sockets, struct problem *problem)
{
	if (!make_maps(problem) || !open_sockets(sockets, problem))
		return false;
	sockets->held = maps.held;
	sockets->addresses = addresses_follow(maps.own, problem);
	return sockets->addresses >= 0 && programs_hold(&maps, sockets->listener, problem) && programs_yield(&maps, problem) &&
	       programs_steer(&maps, problem);
}

bool platform_network_reach(struct problem *problem)
{
	static bool made;
	made = made || addresses_make_routes(problem);
	return made;
}

bool platform_network_held(uint8_t record[HELD_BYTES])
{
	uint64_t end = __atomic_load_n(ring.producer, __ATOMIC_ACQUIRE);
	while (ring.position != end) {
		const uint8_t *at = ring.data + (ring.position & (HELD_RING_BYTES - 1));
		uint32_t head = __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_ACQUIRE);
		uint32_t size = head & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);
		if ((head & BPF_RINGBUF_BUSY_BIT) != 0)
			return false;
		bool good = (head & BPF_RINGBUF_DISCARD_BIT) == 0 && size == HELD_BYTES;
		if (good)
			memcpy(record, at + RECORD_HEAD_BYTES, HELD_BYTES);
		ring.position += (RECORD_HEAD_BYTES + size + RECORD_ALIGNMENT - 1) & ~(uint64_t)(RECORD_ALIGNMENT - 1);
		/* Another program wrote to the ring: the next record begins where the kernel continues. */
		if (end - ring.position > HELD_RING_BYTES)
			ring.position = end;
		__atomic_store_n(ring.consumer, ring.position, __ATOMIC_RELEASE);
		if (good)
			return true;
	}
	return false;
}

void platform_network_send(const uint8_t *packet, size_t size, const uint8_t to[ADDRESS_BYTES], uint32_t interface)
{
	/* A packet that is not sent is like one that is lost. */
	if (address_is_ipv4(to)) {
		struct sockaddr_in address = {.sin_family = AF_INET};
		memcpy(&address.sin_addr, to + ADDRESS_IPV4_AT, 4);
		sendto(raw_ipv4, packet, size, 0, (const struct sockaddr *)&address, sizeof address);
	} else {
		struct sockaddr_in6 address = {.sin6_family = AF_INET6};
		memcpy(&address.sin6_addr, to, ADDRESS_BYTES);
		if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr))
			address.sin6_scope_id = interface;
		sendto(raw_ipv6, packet, size, 0, (const struct sockaddr *)&address, sizeof address);
	}
}

void platform_network_read_addresses(void)
{
	addresses_update();
}

bool platform_network_owns(const uint8_t address[ADDRESS_BYTES])
{
	uint32_t seen;
	if (address_is_loopback(address))
		return true;
	/* The kernel reports a change before the call that made it returns. */
	addresses_update();
	return bpf_get(maps.own, address, &seen);
}

void platform_network_serve_loopback(void)
{
	const uint32_t zero = 0;
	const uint32_t one = 1;
	bpf_set(maps.flags, &zero, &one);
}
