/* The address and the routes that make every address outside local. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "addresses.h"

/*
 * The guest's addresses as those outside would see them. They are not loopback addresses, because programs that have only such
 * do not ask for addresses outside. One is of a range for documentation, the other of a private range.
 */
#define SOURCE_IPV4 "192.0.2.2"
#define SOURCE_IPV6 "fd00:c0:ffee::2"
/* Routes that the guest adds itself come first. */
#define METRIC 4096

struct request {
	struct nlmsghdr header;
	union {
		struct rtmsg route;
		struct ifaddrmsg address;
	} body;
	uint8_t attributes[128];
};

static void add(struct request *request, unsigned short type, const void *data, size_t size)
{
	struct rtattr *attribute = (struct rtattr *)((uint8_t *)request + NLMSG_ALIGN(request->header.nlmsg_len));
	attribute->rta_type = type;
	attribute->rta_len = (unsigned short)RTA_LENGTH(size);
	memcpy(RTA_DATA(attribute), data, size);
	request->header.nlmsg_len = NLMSG_ALIGN(request->header.nlmsg_len) + (uint32_t)RTA_ALIGN(attribute->rta_len);
}

/* Sends a request, and waits for its acknowledgement. */
static bool perform(int fd, const struct request *request, const char *what, struct problem *problem)
{
	union {
		struct nlmsghdr header;
		uint8_t bytes[1024];
	} answer;
	struct nlmsgerr result;
	ssize_t size = send(fd, request, request->header.nlmsg_len, 0) < 0 ? -1 : recv(fd, &answer, sizeof answer, 0);
	if (size < 0)
		return problem_set(problem, errno, "%s", what);
	if (size < (ssize_t)NLMSG_LENGTH(sizeof result) || answer.header.nlmsg_type != NLMSG_ERROR)
		return problem_set(problem, EBADMSG, "%s", what);
	memcpy(&result, NLMSG_DATA(&answer.header), sizeof result);
	return result.error == 0 ? true : problem_set(problem, -result.error, "%s", what);
}

/* A family, with the loopback interface and the guest's address. */
struct family {
	unsigned char number;
	unsigned loopback;
	uint8_t source[16];
	size_t source_bytes;
};

static bool add_address(int fd, const struct family *family, struct problem *problem)
{
	struct request request = {
		.header = {.nlmsg_len = NLMSG_LENGTH(sizeof request.body.address),
			.nlmsg_type = RTM_NEWADDR,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE},
		.body.address = {.ifa_family = family->number,
			.ifa_prefixlen = (unsigned char)(family->source_bytes * 8),
			.ifa_flags = IFA_F_NODAD,
			.ifa_scope = RT_SCOPE_UNIVERSE,
			.ifa_index = family->loopback},
	};
	add(&request, IFA_LOCAL, family->source, family->source_bytes);
	return perform(fd, &request, "address of the network", problem);
}

static bool add_route(int fd, const struct family *family, struct problem *problem)
{
	const uint32_t metric = METRIC;
	struct request request = {
		.header = {.nlmsg_len = NLMSG_LENGTH(sizeof request.body.route),
			.nlmsg_type = RTM_NEWROUTE,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE},
		.body.route = {.rtm_family = family->number,
			.rtm_table = RT_TABLE_MAIN,
			.rtm_protocol = RTPROT_STATIC,
			.rtm_scope = RT_SCOPE_HOST,
			.rtm_type = RTN_LOCAL},
	};
	add(&request, RTA_OIF, &family->loopback, sizeof family->loopback);
	add(&request, RTA_PRIORITY, &metric, sizeof metric);
	add(&request, RTA_PREFSRC, family->source, family->source_bytes);
	return perform(fd, &request, "route of the network", problem);
}

bool addresses_make_routes(struct problem *problem)
{
	unsigned loopback = if_nametoindex("lo");
	struct family ipv4 = {.number = AF_INET, .loopback = loopback, .source_bytes = 4};
	struct family ipv6 = {.number = AF_INET6, .loopback = loopback, .source_bytes = 16};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	inet_pton(AF_INET, SOURCE_IPV4, ipv4.source);
	inet_pton(AF_INET6, SOURCE_IPV6, ipv6.source);
	if (fd < 0)
		return problem_set(problem, errno, "routes");
	bool done = add_address(fd, &ipv4, problem) && add_address(fd, &ipv6, problem) && add_route(fd, &ipv4, problem) &&
		    add_route(fd, &ipv6, problem);
	close(fd);
	return done;
}
