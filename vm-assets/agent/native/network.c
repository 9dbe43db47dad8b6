/*
 * The network's side of the kernel, for tests. A test plays the kernel over UDP on loopback: each datagram that it sends is a
 * held SYN, and each packet that the agent sends is a datagram to the last sender. The file `network` in the directory has
 * the ports: of this exchange, of the listener of held connections, and of the name server over UDP and TCP. If there is a
 * file `no-network`, the set-up fails.
 */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../budget.h"
#include "../duplex.h"
#include "../platform.h"

/* The test's address of the guest. */
static const uint8_t own_address[4] = {192, 0, 2, 2};
static int exchange = -1;
static struct sockaddr_in6 peer;

/* Binds to a port of all addresses, and returns the port; 0 on failure. */
static int serve(int type, int *port)
{
	struct sockaddr_in6 address = {.sin6_family = AF_INET6};
	socklen_t size = sizeof address;
	const int on = 1;
	const int off = 0;
	int fd = socket(AF_INET6, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0 ||
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on) != 0 ||
		(type == SOCK_STREAM && !duplex_limit(fd, SOCKET_BUFFER_BYTES)) ||
		bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
		(type == SOCK_STREAM && listen(fd, SOMAXCONN) != 0) ||
		getsockname(fd, (struct sockaddr *)&address, &size) != 0)
		return -1;
	*port = ntohs(address.sin6_port);
	return fd;
}

bool platform_network_open(struct network_sockets *sockets, struct problem *problem)
{
	char path[PATH_MAX];
	int ports[4];
	snprintf(path, sizeof path, "%s/no-network", platform_prefix());
	if (access(path, F_OK) == 0)
		return problem_set(problem, ENOSYS, "programs of the network");
	*sockets = (struct network_sockets){
		.held = serve(SOCK_DGRAM, &ports[0]),
		.listener = serve(SOCK_STREAM, &ports[1]),
		.questions = serve(SOCK_DGRAM, &ports[2]),
		.question_listener = serve(SOCK_STREAM, &ports[3]),
		.addresses = -1,
	};
	if (sockets->held < 0 || sockets->listener < 0 || sockets->questions < 0 || sockets->question_listener < 0)
		return problem_set(problem, errno, "sockets");
	exchange = sockets->held;
	snprintf(path, sizeof path, "%s/network", platform_prefix());
	FILE *file = fopen(path, "we");
	if (file == NULL)
		return problem_set(problem, errno, "%s", path);
	fprintf(file, "%d %d %d %d\n", ports[0], ports[1], ports[2], ports[3]);
	fclose(file);
	return true;
}

bool platform_network_reach(struct problem *problem)
{
	(void)problem;
	return true;
}

bool platform_network_held(uint8_t record[HELD_BYTES])
{
	socklen_t size = sizeof peer;
	memset(record, 0, HELD_BYTES);
	return recvfrom(exchange, record, HELD_BYTES, 0, (struct sockaddr *)&peer, &size) >= 0;
}

void platform_network_send(const uint8_t *packet, size_t size, const uint8_t to[ADDRESS_BYTES], uint32_t interface)
{
	(void)to;
	(void)interface;
	if (peer.sin6_family != 0)
		sendto(exchange, packet, size, 0, (const struct sockaddr *)&peer, sizeof peer);
}

void platform_network_read_addresses(void)
{
}

bool platform_network_owns(const uint8_t address[ADDRESS_BYTES])
{
	return address_is_ipv4(address) && memcmp(address + ADDRESS_IPV4_AT, own_address, sizeof own_address) == 0;
}

void platform_network_serve_loopback(void)
{
}
