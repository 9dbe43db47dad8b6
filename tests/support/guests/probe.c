/*
 * A client for tests of a guest's network. Each command prints one line and exits with 0, or 2 for wrong arguments:
 *
 *   connect [-n] [-4] [-6] [-t] [-b PORT] ADDRESS PORT   connects, with -n non-blocking, -4 to a mapped address, -t with TCP
 *                                        Fast Open, -b from a port: "ERRNO-NAME MILLISECONDS PEER", and "-" without a peer
 *   half ADDRESS PORT BYTES              sends that many bytes and an end, then prints the number of bytes of the answer
 *   hold ADDRESS PORT                    connects, sends nothing, prints "reset" or "end" when the other side ends
 *   datagram ADDRESS PORT                sends a datagram from a connected socket: errno of the answer
 *   look NAME                            getaddrinfo: addresses, or the error
 *   ask ADDRESS PORT TYPE NAME           a DNS query written by hand, over UDP: response code, and the record's bytes
 *   echo PORT                            answers one datagram on a port of every address with itself; prints its length
 *   flood ADDRESS COUNT                  SYNs from a raw socket, with different ports
 *   ruin                                 as root, writes over all maps, and detaches all programs of the network
 *   forge ADDRESS PORT MARK              a SYN with a mark: prints the result of a connect at the same time
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

union address {
	struct sockaddr any;
	struct sockaddr_in ipv4;
	struct sockaddr_in6 ipv6;
};

static long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static const char *name_of(int error)
{
	static const struct {
		int error;
		const char *name;
	} names[] = {{0, "OK"}, {ECONNREFUSED, "ECONNREFUSED"}, {EHOSTUNREACH, "EHOSTUNREACH"}, {ENETUNREACH, "ENETUNREACH"},
		{EACCES, "EACCES"}, {ETIMEDOUT, "ETIMEDOUT"}, {ECONNRESET, "ECONNRESET"}};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (names[i].error == error)
			return names[i].name;
	return strerror(error);
}

static socklen_t parse(const char *text, const char *port, int mapped, union address *address)
{
	memset(address, 0, sizeof *address);
	if (mapped || strchr(text, ':') != NULL) {
		char buffer[64];
		snprintf(buffer, sizeof buffer, "%s%s", mapped ? "::ffff:" : "", text);
		address->ipv6.sin6_family = AF_INET6;
		address->ipv6.sin6_port = htons((unsigned short)atoi(port));
		if (inet_pton(AF_INET6, buffer, &address->ipv6.sin6_addr) != 1)
			exit(2);
		return sizeof address->ipv6;
	}
	address->ipv4.sin_family = AF_INET;
	address->ipv4.sin_port = htons((unsigned short)atoi(port));
	if (inet_pton(AF_INET, text, &address->ipv4.sin_addr) != 1)
		exit(2);
	return sizeof address->ipv4;
}

struct options {
	int nonblocking;
	int mapped;
	int fast_open;
	int port;
};

static int dial(const struct options *options, const char *text, const char *port, int *result)
{
	union address address;
	socklen_t size = parse(text, port, options->mapped, &address);
	int on = 1;
	int fd = socket(address.any.sa_family, SOCK_STREAM | (options->nonblocking ? SOCK_NONBLOCK : 0), 0);
	if (options->port != 0) {
		union address own;
		socklen_t own_size = parse(address.any.sa_family == AF_INET ? "0.0.0.0" : "::", "0", 0, &own);
		if (address.any.sa_family == AF_INET)
			own.ipv4.sin_port = htons((unsigned short)options->port);
		else
			own.ipv6.sin6_port = htons((unsigned short)options->port);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
		if (bind(fd, &own.any, own_size) != 0)
			exit(2);
	}
	if (options->fast_open)
		*result = sendto(fd, "x", 1, MSG_FASTOPEN, &address.any, size) < 0 ? errno : 0;
	else
		*result = connect(fd, &address.any, size) != 0 ? errno : 0;
	if (options->nonblocking && *result == EINPROGRESS) {
		struct pollfd ready = {.fd = fd, .events = POLLOUT};
		socklen_t length = sizeof *result;
		poll(&ready, 1, 20000);
		getsockopt(fd, SOL_SOCKET, SO_ERROR, result, &length);
	}
	return fd;
}

static int run_connect(int argc, char **argv)
{
	struct options options = {0};
	int option;
	while ((option = getopt(argc, argv, "n46tb:")) != -1) {
		options.nonblocking |= option == 'n';
		options.mapped |= option == '4';
		options.fast_open |= option == 't';
		if (option == 'b')
			options.port = atoi(optarg);
	}
	if (argc - optind != 2)
		return 2;
	int error;
	long start = now_ms();
	int fd = dial(&options, argv[optind], argv[optind + 1], &error);
	long took = now_ms() - start;
	union address peer;
	socklen_t size = sizeof peer;
	char text[64] = "-";
	if (error == 0 && getpeername(fd, &peer.any, &size) == 0)
		inet_ntop(peer.any.sa_family,
			peer.any.sa_family == AF_INET ? (void *)&peer.ipv4.sin_addr : (void *)&peer.ipv6.sin6_addr, text,
			sizeof text);
	printf("%s %ld %s\n", name_of(error), took, text);
	return 0;
}

static int run_half(const char *host, const char *port, long bytes)
{
	struct options options = {0};
	char buffer[65536];
	int error;
	int fd = dial(&options, host, port, &error);
	long received = 0;
	memset(buffer, 'h', sizeof buffer);
	if (error != 0) {
		printf("%s\n", name_of(error));
		return 0;
	}
	for (long left = bytes; left > 0;) {
		ssize_t sent = write(fd, buffer, left < (long)sizeof buffer ? (size_t)left : sizeof buffer);
		if (sent < 0) {
			printf("%s\n", name_of(errno));
			return 0;
		}
		left -= sent;
	}
	shutdown(fd, SHUT_WR);
	for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) != 0; received += count)
		if (count < 0) {
			printf("%s\n", name_of(errno));
			return 0;
		}
	printf("%ld\n", received);
	return 0;
}

static int run_hold(const char *host, const char *port)
{
	struct options options = {0};
	char byte;
	int error;
	int fd = dial(&options, host, port, &error);
	printf("%s\n", error != 0 ? name_of(error) : read(fd, &byte, 1) < 0 ? "reset" : "end");
	return 0;
}

static int run_datagram(const char *host, const char *port)
{
	union address address;
	socklen_t size = parse(host, port, 0, &address);
	char byte = 0;
	int fd = socket(address.any.sa_family, SOCK_DGRAM, 0);
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	if (connect(fd, &address.any, size) != 0 || send(fd, &byte, 1, 0) != 1)
		printf("%s\n", name_of(errno));
	else if (poll(&ready, 1, 5000) != 1)
		printf("nothing\n");
	else
		printf("%s\n", recv(fd, &byte, 1, 0) < 0 ? name_of(errno) : "data");
	return 0;
}

static int run_look(const char *name)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	int error = getaddrinfo(name, NULL, &hints, &found);
	if (error != 0) {
		printf("%s\n", error == EAI_NONAME ? "EAI_NONAME" : gai_strerror(error));
		return 0;
	}
	for (struct addrinfo *at = found; at != NULL; at = at->ai_next) {
		char text[64];
		getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
		printf("%s%s", at == found ? "" : " ", text);
	}
	printf("\n");
	return 0;
}

static int run_ask(const char *host, const char *port, int type, const char *name)
{
	union address address;
	socklen_t size = parse(host, port, 0, &address);
	unsigned char message[512] = {0x12, 0x34, 1, 0, 0, 1};
	size_t length = 12;
	for (const char *at = name; *at != '\0';) {
		size_t label = strcspn(at, ".");
		message[length++] = (unsigned char)label;
		memcpy(message + length, at, label);
		length += label;
		at += label + (at[label] == '.');
	}
	message[length++] = 0;
	message[length++] = (unsigned char)(type >> 8);
	message[length++] = (unsigned char)type;
	message[length++] = 0;
	message[length++] = 1;
	size_t question = length;
	int fd = socket(address.any.sa_family, SOCK_DGRAM, 0);
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	if (connect(fd, &address.any, size) != 0 || send(fd, message, length, 0) < 0 || poll(&ready, 1, 5000) != 1) {
		printf("nothing\n");
		return 0;
	}
	ssize_t count = recv(fd, message, sizeof message, 0);
	if (count < 12) {
		printf("%s\n", name_of(errno));
		return 0;
	}
	printf("%d ", message[3] & 15);
	for (ssize_t i = (ssize_t)question + 12; i < count; i++)
		printf("%02x", message[i]);
	printf("\n");
	return 0;
}

static int run_echo(const char *port)
{
	union address address;
	union address peer;
	socklen_t size = parse("0.0.0.0", port, 0, &address);
	socklen_t peer_size = sizeof peer;
	char buffer[512];
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (bind(fd, &address.any, size) != 0)
		return 2;
	ssize_t count = recvfrom(fd, buffer, sizeof buffer, 0, &peer.any, &peer_size);
	sendto(fd, buffer, (size_t)count, 0, &peer.any, peer_size);
	printf("%zd\n", count);
	return 0;
}

static unsigned add_words(unsigned total, const void *bytes, size_t size)
{
	const unsigned char *at = bytes;
	for (size_t i = 0; i + 1 < size; i += 2)
		total += (unsigned)(at[i] << 8 | at[i + 1]);
	return total;
}

static int run_flood(const char *host, long count)
{
	struct sockaddr_in from = {.sin_family = AF_INET};
	struct sockaddr_in to = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_TCP);
	inet_pton(AF_INET, host, &to.sin_addr);
	inet_pton(AF_INET, "192.0.2.2", &from.sin_addr);
	for (long i = 0; i < count; i++) {
		struct tcphdr header = {0};
		header.th_sport = htons((unsigned short)(1024 + i % 60000));
		header.th_dport = htons((unsigned short)(1000 + i % 1000));
		header.th_seq = (unsigned)i;
		header.th_off = 5;
		header.th_flags = TH_SYN;
		unsigned sum = add_words(sizeof header + IPPROTO_TCP, &header, sizeof header);
		sum = add_words(add_words(sum, &from.sin_addr, 4), &to.sin_addr, 4);
		while (sum >> 16 != 0)
			sum = (sum & 0xffff) + (sum >> 16);
		header.th_sum = htons((unsigned short)~sum);
		sendto(fd, &header, sizeof header, 0, (struct sockaddr *)&to, sizeof to);
	}
	printf("%ld\n", count);
	return fd < 0 ? 2 : 0;
}

static int bpf(int command, union bpf_attr *attributes)
{
	return (int)syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

static void ruin_map(int map)
{
	unsigned char key[64] = {0};
	unsigned char value[64];
	for (int i = 0; i < 4; i++) {
		union bpf_attr attributes = {0};
		memset(value, 0xff, sizeof value);
		key[0] = (unsigned char)i;
		attributes.map_fd = (unsigned)map;
		attributes.key = (uintptr_t)key;
		attributes.value = (uintptr_t)value;
		bpf(BPF_MAP_UPDATE_ELEM, &attributes);
		attributes.value = 0;
		bpf(BPF_MAP_DELETE_ELEM, &attributes);
	}
	/* The consumer's page of a ring. */
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
	if (page != MAP_FAILED)
		memset(page, 0x5a, 4096);
}

static int run_ruin(void)
{
	static const struct {
		int next;
		int open;
	} kinds[] = {{BPF_MAP_GET_NEXT_ID, BPF_MAP_GET_FD_BY_ID}, {BPF_LINK_GET_NEXT_ID, BPF_LINK_GET_FD_BY_ID}};
	int counts[2] = {0, 0};
	for (int kind = 0; kind < 2; kind++)
		for (unsigned id = 0;;) {
			union bpf_attr attributes = {.start_id = id};
			if (bpf(kinds[kind].next, &attributes) != 0)
				break;
			id = attributes.next_id;
			memset(&attributes, 0, sizeof attributes);
			attributes.map_id = id;
			int fd = bpf(kinds[kind].open, &attributes);
			memset(&attributes, 0, sizeof attributes);
			attributes.link_detach.link_fd = (unsigned)fd;
			counts[kind] += fd >= 0;
			if (kind == 0)
				ruin_map(fd);
			else
				bpf(BPF_LINK_DETACH, &attributes);
			close(fd);
		}
	printf("%d maps, %d links\n", counts[0], counts[1]);
	return 0;
}

static int run_forge(const char *host, const char *port, unsigned long mark)
{
	union address address;
	unsigned value = (unsigned)mark;
	char byte;
	socklen_t size = parse(host, port, 0, &address);
	int fd = socket(address.any.sa_family, SOCK_STREAM, 0);
	if (setsockopt(fd, SOL_SOCKET, SO_MARK, &value, sizeof value) != 0)
		return 2;
	if (connect(fd, &address.any, size) != 0)
		printf("%s\n", name_of(errno));
	else
		printf("connected, %s\n", read(fd, &byte, 1) < 0 ? name_of(errno) : "end");
	return 0;
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";
	if (strcmp(command, "connect") == 0)
		return run_connect(argc - 1, argv + 1);
	if (strcmp(command, "half") == 0 && argc == 5)
		return run_half(argv[2], argv[3], atol(argv[4]));
	if (strcmp(command, "hold") == 0 && argc == 4)
		return run_hold(argv[2], argv[3]);
	if (strcmp(command, "datagram") == 0 && argc == 4)
		return run_datagram(argv[2], argv[3]);
	if (strcmp(command, "look") == 0 && argc == 3)
		return run_look(argv[2]);
	if (strcmp(command, "ask") == 0 && argc == 6)
		return run_ask(argv[2], argv[3], atoi(argv[4]), argv[5]);
	if (strcmp(command, "echo") == 0 && argc == 3)
		return run_echo(argv[2]);
	if (strcmp(command, "flood") == 0 && argc == 4)
		return run_flood(argv[2], atol(argv[3]));
	if (strcmp(command, "ruin") == 0)
		return run_ruin();
	if (strcmp(command, "forge") == 0 && argc == 5)
		return run_forge(argv[2], argv[3], strtoul(argv[4], NULL, 0));
	return 2;
}
