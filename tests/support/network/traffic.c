/*
 * Traffic of a guest at the lowest cost for the guest. Each command exits with 0 when all of it has passed.
 *   traffic write BYTES              to standard output
 *   traffic get HOST PORT BYTES      as the answer of a web server
 *   traffic put HOST PORT BYTES      to a peer that reports how many it received
 *   traffic opens HOST PORT COUNT    connections one after the other, with one byte there and back
 *   traffic serve PORT               as a web server of one connection at a time: GET /bytes/BYTES
 *   traffic crowd HOST PORT COUNT    the same, all at once
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK = 65536, CROWD_MAX = 256, CROWD_MS_MAX = 60000 };

static char chunk[CHUNK];

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static struct addrinfo *lookup(const char *host, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	if (getaddrinfo(host, port, &hints, &found) != 0) fail("getaddrinfo");
	return found;
}

static int connected(const struct addrinfo *to)
{
	int fd = socket(to->ai_family, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, to->ai_addr, to->ai_addrlen) != 0) fail("connect");
	return fd;
}

static void send_bytes(int fd, long long count)
{
	while (count > 0) {
		ssize_t n = write(fd, chunk, count < CHUNK ? (size_t)count : CHUNK);
		if (n < 0) fail("write");
		count -= n;
	}
}

static int get(const struct addrinfo *to, long long count)
{
	int fd = connected(to);
	dprintf(fd, "GET /bytes/%lld HTTP/1.1\r\nHost: traffic\r\nConnection: close\r\n\r\n", count);
	long long got = 0;
	for (ssize_t n; (n = read(fd, chunk, CHUNK)) != 0; got += n)
		if (n < 0) fail("read");
	return got > count ? 0 : 1;
}

static void answer(int fd)
{
	char head[4096];
	size_t at = 0;
	while (at < sizeof head - 1) {
		ssize_t n = read(fd, head + at, sizeof head - 1 - at);
		if (n <= 0) return;
		at += (size_t)n;
		head[at] = '\0';
		if (strstr(head, "\r\n\r\n") != NULL) break;
	}
	long long count = 0;
	if (sscanf(head, "GET /bytes/%lld ", &count) != 1) return;
	dprintf(fd, "HTTP/1.1 200 OK\r\nContent-Length: %lld\r\nConnection: close\r\n\r\n", count);
	send_bytes(fd, count);
}

static _Noreturn void serve(int port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0) fail("bind");
	if (listen(listener, CROWD_MAX) != 0) fail("listen");
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		if (fd < 0) fail("accept");
		answer(fd);
		close(fd);
	}
}

static int put(const struct addrinfo *to, long long count)
{
	int fd = connected(to);
	send_bytes(fd, count);
	shutdown(fd, SHUT_WR);
	char answer[32] = "";
	for (ssize_t n, at = 0; (n = read(fd, answer + at, sizeof answer - 1 - (size_t)at)) > 0; at += n) {}
	return atoll(answer) == count ? 0 : 1;
}

static int opens(const struct addrinfo *to, long long count)
{
	for (; count > 0; count--) {
		int fd = connected(to);
		if (write(fd, chunk, 1) != 1 || read(fd, chunk, 1) != 1) fail("echo");
		close(fd);
	}
	return 0;
}

static int crowd(const struct addrinfo *to, int count)
{
	struct pollfd all[CROWD_MAX];
	if (count > CROWD_MAX) return 2;
	for (int i = 0; i < count; i++) {
		all[i] = (struct pollfd){.fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0), .events = POLLOUT};
		if (connect(all[i].fd, to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS) fail("connect");
	}
	for (int left = count; left > 0;) {
		if (poll(all, (nfds_t)count, CROWD_MS_MAX) <= 0) fail("poll");
		for (int i = 0; i < count; i++) {
			if (all[i].revents == 0) continue;
			bool is_connected = all[i].events == POLLIN;
			if (is_connected ? read(all[i].fd, chunk, 1) != 1 : write(all[i].fd, chunk, 1) != 1) fail("echo");
			all[i].events = POLLIN;
			if (!is_connected) continue;
			close(all[i].fd);
			all[i].fd = -1;
			left--;
		}
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	if (strcmp(what, "write") == 0) return send_bytes(STDOUT_FILENO, atoll(argv[2])), 0;
	if (strcmp(what, "serve") == 0) serve(atoi(argv[2]));
	if (argc != 5) return 2;
	const struct addrinfo *to = lookup(argv[2], argv[3]);
	if (strcmp(what, "get") == 0) return get(to, atoll(argv[4]));
	if (strcmp(what, "put") == 0) return put(to, atoll(argv[4]));
	if (strcmp(what, "opens") == 0) return opens(to, atoll(argv[4]));
	if (strcmp(what, "crowd") == 0) return crowd(to, atoi(argv[4]));
	return 2;
}
