/* The guest's own addresses. Packets for them are not for the agent, and every address can be bound, so the kernel is asked. */
#include "addresses.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../budget.h"
#include "../network/address.h"
#include "bpf.h"

/* Messages that are read at once. A guest that changes addresses without end must not keep the agent busy. */
#define MESSAGES_COUNT_MAX 64

static int fd = -1;
static int own = -1;
/* The listing in which an address was seen last. */
static uint32_t listing;
static bool listing_now;
/* Something was removed or lost, so all addresses have to be listed again. */
static bool stale;

static bool list(void)
{
	struct {
		struct nlmsghdr header;
		struct ifaddrmsg body;
	} request = {
		.header = {.nlmsg_len = NLMSG_LENGTH(sizeof request.body),
			.nlmsg_type = RTM_GETADDR,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.body = {.ifa_family = AF_UNSPEC},
	};
	if (send(fd, &request, request.header.nlmsg_len, 0) < 0)
		return false;
	listing++;
	listing_now = true;
	stale = false;
	return true;
}

static void enter(const struct nlmsghdr *header)
{
	const struct ifaddrmsg *body = NLMSG_DATA(header);
	uint8_t address[ADDRESS_BYTES];
	size_t offset = NLMSG_SPACE(sizeof *body);
	/* Not by the kernel's macros, which mix signed and unsigned lengths. */
	while (offset + sizeof(struct rtattr) <= header->nlmsg_len) {
		const struct rtattr *at = (const struct rtattr *)(const void *)((const uint8_t *)header + offset);
		if (at->rta_len < sizeof *at || at->rta_len > header->nlmsg_len - offset)
			return;
		offset += RTA_ALIGN((size_t)at->rta_len);
		bool ipv4 = body->ifa_family == AF_INET && at->rta_type == IFA_LOCAL && RTA_PAYLOAD(at) == 4;
		bool ipv6 = body->ifa_family == AF_INET6 && at->rta_type == IFA_ADDRESS && RTA_PAYLOAD(at) == ADDRESS_BYTES;
		if (ipv4)
			address_of_ipv4(address, RTA_DATA(at));
		else if (ipv6)
			memcpy(address, RTA_DATA(at), ADDRESS_BYTES);
		/* A full map refuses more; connections to such an address are then announced to the host, which refuses them. */
		if (ipv4 || ipv6)
			bpf_set(own, address, &listing);
	}
}

/* Removes the addresses that the last listing did not have. */
static void sweep(void)
{
	uint8_t key[ADDRESS_BYTES];
	uint8_t next[ADDRESS_BYTES];
	uint32_t seen;
	bool more = bpf_next(own, NULL, key);
	while (more) {
		more = bpf_next(own, key, next);
		if (bpf_get(own, key, &seen) && seen != listing)
			bpf_delete(own, key);
		memcpy(key, next, sizeof key);
	}
}

static void take(const struct nlmsghdr *header)
{
	switch (header->nlmsg_type) {
	case RTM_NEWADDR:
		if (header->nlmsg_len >= NLMSG_SPACE(sizeof(struct ifaddrmsg)))
			enter(header);
		return;
	case RTM_DELADDR:
		/* Another interface may have the same address. */
		stale = true;
		return;
	case NLMSG_DONE:
		if (listing_now && (header->nlmsg_flags & NLM_F_DUMP_INTR) == 0)
			sweep();
		else
			stale = true;
		listing_now = false;
		return;
	default:
		return;
	}
}

/* Reads one batch. Returns false when none waits. */
static bool read_batch(void)
{
	union {
		struct nlmsghdr header;
		uint8_t bytes[8192];
	} batch;
	ssize_t size = recv(fd, &batch, sizeof batch, MSG_DONTWAIT);
	if (size < 0) {
		/* ENOBUFS: there were more changes than the socket holds. */
		if (errno == EAGAIN)
			return false;
		stale = true;
		return true;
	}
	size_t offset = 0;
	while (offset + sizeof batch.header <= (size_t)size) {
		const struct nlmsghdr *at = (const struct nlmsghdr *)(const void *)(batch.bytes + offset);
		if (at->nlmsg_len < sizeof *at || at->nlmsg_len > (size_t)size - offset)
			break;
		take(at);
		offset += NLMSG_ALIGN((size_t)at->nlmsg_len);
	}
	return true;
}

void addresses_update(void)
{
	for (unsigned i = 0; i < MESSAGES_COUNT_MAX; i++) {
		if (read_batch())
			continue;
		/* A listing that is not complete by now lost its end. */
		if (!stale && !listing_now)
			return;
		if (!list())
			return;
	}
}

int addresses_follow(int map, struct problem *problem)
{
	const struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR};
	const int queue = ADDRESS_QUEUE_BYTES;
	own = map;
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &queue, sizeof queue) != 0 ||
		bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 || !list()) {
		problem_set(problem, errno, "addresses of the guest");
		return -1;
	}
	addresses_update();
	return fd;
}
