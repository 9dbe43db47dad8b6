/*
 * A program's view of its network, in one line. Runs in guests, with glibc and with musl.
 *   probe connect HOST PORT     a blocking connect: `connected ADDRESS PORT` with the peer's name, or the name of the errno
 *   probe each PORT HOST...     the same for many hosts, with a line for each: `connected`, or the errno
 *   probe later HOST PORT       a non-blocking connect: its first result, then its final one
 *   probe udp HOST PORT         a datagram on a connected socket: `sent`, and the errno of the answer that is read
 *   probe lookup NAME           addresses by getaddrinfo, or its error
 *   probe flood ADDRESS COUNT MARK   SYNs by a raw socket, each from another port, with this mark: the number sent
 *   probe hold HOST PORT COUNT  connections that never write, read or close: the number connected; then waits
 *   probe detach                detaches all eBPF programs: their number
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* For bpf(2), whose header musl cannot include. */
enum { BPF_LINK_GET_FD_BY_ID = 30, BPF_LINK_GET_NEXT_ID = 31, BPF_LINK_DETACH = 34 };
enum { ANSWER_MS_MAX = 60000, UDP_MS_MAX = 5000 };

static const char *name_of(int error)
{
	switch (error) {
	case 0: return "connected";
	case ECONNREFUSED: return "ECONNREFUSED";
	case EHOSTUNREACH: return "EHOSTUNREACH";
	case ENETUNREACH: return "ENETUNREACH";
	case ETIMEDOUT: return "ETIMEDOUT";
	case EACCES: return "EACCES";
	case ECONNRESET: return "ECONNRESET";
	case EINPROGRESS: return "EINPROGRESS";
	case EAGAIN: return "EAGAIN";
	default: return strerror(error);
	}
}

static struct addrinfo *lookup(const char *host, const char *port, int type)
{
	struct addrinfo hints = {.ai_socktype = type}, *found = NULL;
	int error = getaddrinfo(host, port, &hints, &found);
	if (error == 0) return found;
	printf("%s\n", error == EAI_NONAME ? "EAI_NONAME" : error == EAI_AGAIN ? "EAI_AGAIN" : gai_strerror(error));
	exit(1);
}

static int open_socket(const struct addrinfo *to, int flags)
{
	int fd = socket(to->ai_family, to->ai_socktype | flags, 0);
	if (fd >= 0) return fd;
	perror("socket");
	exit(2);
}

static const char *text_of(const struct sockaddr *address, socklen_t length)
{
	static char text[NI_MAXHOST + NI_MAXSERV + 2];
	char host[NI_MAXHOST], port[NI_MAXSERV];
	getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
	snprintf(text, sizeof text, "%s %s", host, port);
	return text;
}

static void say_peer(int fd)
{
	struct sockaddr_storage peer;
	socklen_t length = sizeof peer;
	if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0) printf("connected, without a peer: %s\n", name_of(errno));
	else printf("connected %s\n", text_of((struct sockaddr *)&peer, length));
}

static int do_connect(const char *host, const char *port)
{
	const struct addrinfo *to = lookup(host, port, SOCK_STREAM);
	int fd = open_socket(to, 0);
	if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) say_peer(fd);
	else printf("%s\n", name_of(errno));
	return 0;
}

static int do_each(const char *port, char **hosts)
{
	for (; *hosts != NULL; hosts++) {
		struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *to = NULL;
		int error = getaddrinfo(*hosts, port, &hints, &to);
		if (error != 0) {
			printf("%s: %s\n", *hosts, error == EAI_NONAME ? "EAI_NONAME" : gai_strerror(error));
			continue;
		}
		int fd = open_socket(to, 0);
		printf("%s: %s\n", *hosts, connect(fd, to->ai_addr, to->ai_addrlen) == 0 ? "connected" : name_of(errno));
		close(fd);
		freeaddrinfo(to);
	}
	return 0;
}

static int bpf(int command, uint32_t first, uint32_t *second)
{
	/* The first field is a number or a descriptor, the second what follows a number. */
	uint32_t attributes[32] = {first};
	int result = (int)syscall(SYS_bpf, command, attributes, sizeof attributes);
	if (second != NULL) *second = attributes[1];
	return result;
}

static int do_detach(void)
{
	unsigned count = 0;
	for (uint32_t id = 0; bpf(BPF_LINK_GET_NEXT_ID, id, &id) == 0;) {
		int fd = bpf(BPF_LINK_GET_FD_BY_ID, id, NULL);
		if (fd >= 0 && bpf(BPF_LINK_DETACH, (uint32_t)fd, NULL) == 0) count++;
	}
	printf("%u\n", count);
	return 0;
}

static int do_later(const char *host, const char *port)
{
	const struct addrinfo *to = lookup(host, port, SOCK_STREAM);
	int fd = open_socket(to, SOCK_NONBLOCK);
	int at_once = connect(fd, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
	struct pollfd watched = {.fd = fd, .events = POLLOUT};
	if (poll(&watched, 1, ANSWER_MS_MAX) != 1) return puts("nothing came") < 0;
	int then = 0;
	socklen_t length = sizeof then;
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &then, &length);
	printf("%s %s\n", name_of(at_once), name_of(then));
	return 0;
}

static int do_udp(const char *host, const char *port)
{
	const struct addrinfo *to = lookup(host, port, SOCK_DGRAM);
	int fd = open_socket(to, 0);
	char byte = 'x';
	if (connect(fd, to->ai_addr, to->ai_addrlen) != 0 || send(fd, &byte, 1, 0) != 1) return printf("%s\n", name_of(errno)) < 0;
	struct pollfd watched = {.fd = fd, .events = POLLIN};
	if (poll(&watched, 1, UDP_MS_MAX) != 1) return puts("nothing came") < 0;
	ssize_t got = recv(fd, &byte, 1, 0);
	printf("sent %s\n", got >= 0 ? "answered" : name_of(errno));
	return 0;
}

static int do_lookup(const char *host)
{
	for (const struct addrinfo *each = lookup(host, NULL, SOCK_STREAM); each != NULL; each = each->ai_next) {
		char text[NI_MAXHOST];
		getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
		printf("%s\n", text);
	}
	return 0;
}

static uint16_t sum_of(const void *bytes, size_t length, uint32_t sum)
{
	const uint8_t *at = bytes;
	for (size_t i = 0; i + 1 < length; i += 2) sum += (uint32_t)(at[i] << 8 | at[i + 1]);
	while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)~sum);
}

static int do_flood(const char *address, unsigned count, unsigned mark)
{
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof mark) != 0) return perror("raw socket"), 2;
	struct sockaddr_in to = {.sin_family = AF_INET};
	inet_pton(AF_INET, address, &to.sin_addr);
	unsigned sent = 0;
	for (unsigned i = 0; i < count; i++) {
		struct { struct iphdr ip; struct tcphdr tcp; } packet = {
			.ip = {.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP, .tot_len = htons(sizeof packet), .id = htons((uint16_t)i),
				.saddr = htonl(0xc0000202), .daddr = to.sin_addr.s_addr},
			.tcp = {.source = htons((uint16_t)(1024 + i % 60000)), .dest = htons((uint16_t)(80 + i / 60000)), .seq = htonl(i), .doff = 5,
				.syn = 1, .window = htons(1024)},
		};
		/* The pseudo header: both addresses, protocol and length. */
		uint32_t pseudo = IPPROTO_TCP + sizeof packet.tcp;
		for (int part = 0; part < 32; part += 16)
			pseudo += (ntohl(packet.ip.saddr) >> part & 0xffff) + (ntohl(packet.ip.daddr) >> part & 0xffff);
		packet.tcp.check = sum_of(&packet.tcp, sizeof packet.tcp, pseudo);
		packet.ip.check = sum_of(&packet.ip, sizeof packet.ip, 0);
		if (sendto(fd, &packet, sizeof packet, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)sizeof packet) sent++;
	}
	printf("%u\n", sent);
	return 0;
}

static _Noreturn void do_hold(const char *host, const char *port, int count)
{
	const struct addrinfo *to = lookup(host, port, SOCK_STREAM);
	int connected = 0;
	for (int i = 0; i < count; i++) {
		int fd = open_socket(to, 0);
		if (connect(fd, to->ai_addr, to->ai_addrlen) == 0) connected++;
	}
	printf("%d\n", connected);
	fflush(stdout);
	for (;;) pause();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (strcmp(what, "detach") == 0) return do_detach();
	if (strcmp(what, "each") == 0 && argc > 3) return do_each(argv[2], argv + 3);
	if (strcmp(what, "connect") == 0 && argc == 4) return do_connect(argv[2], argv[3]);
	if (strcmp(what, "later") == 0 && argc == 4) return do_later(argv[2], argv[3]);
	if (strcmp(what, "udp") == 0 && argc == 4) return do_udp(argv[2], argv[3]);
	if (strcmp(what, "lookup") == 0 && argc == 3) return do_lookup(argv[2]);
	if (strcmp(what, "flood") == 0 && argc == 5) return do_flood(argv[2], (unsigned)atoi(argv[3]), (unsigned)strtoul(argv[4], NULL, 0));
	if (strcmp(what, "hold") == 0 && argc == 5) do_hold(argv[2], argv[3], atoi(argv[4]));
	fputs("probe: connect, each, later, udp, lookup, flood, hold or detach\n", stderr);
	return 2;
}
