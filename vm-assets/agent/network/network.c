#include "network.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <errno.h>

#include "../bytes.h"
#include "../log.h"
#include "../platform.h"
#include "../poller.h"
#include "../protocol.h"
#include "clients.h"
#include "datagrams.h"
#include "opened.h"
#include "resolver.h"
#include "source.h"

/* SYNs that are handled before other work. */
#define BATCH_COUNT 8

static bool available;
static struct problem unavailable;
static bool enabled;
static struct network_sockets sockets;
/* Descriptors that may have something to read. */
static bool held;
static bool acceptable;
static bool changed;

void network_open(void)
{
	available = platform_network_open(&sockets, &unavailable);
	if (!available) {
		log_line("network: %s", unavailable.text);
		return;
	}
	datagrams_open(sockets.questions);
	clients_open(sockets.question_listener);
	poller_add(sockets.held, EPOLLIN | EPOLLET, network_key(SOURCE_HELD, 0));
	poller_add(sockets.listener, EPOLLIN | EPOLLET, network_key(SOURCE_ACCEPTS, 0));
	if (sockets.addresses >= 0)
		poller_add(sockets.addresses, EPOLLIN | EPOLLET, network_key(SOURCE_ADDRESSES, 0));
}

bool network_ready(uint64_t key)
{
	if ((key & KEY_NETWORK) == 0)
		return false;
	switch ((enum network_source)(key & 0x3f)) {
	case SOURCE_HELD:
		held = true;
		break;
	case SOURCE_ACCEPTS:
		acceptable = true;
		break;
	case SOURCE_ADDRESSES:
		changed = true;
		break;
	case SOURCE_DATAGRAMS:
		datagrams_ready();
		break;
	case SOURCE_CLIENT_LISTENER:
		clients_accept_ready();
		break;
	case SOURCE_CLIENT:
		clients_ready((unsigned)(key >> 8));
		break;
	default:
		break;
	}
	return true;
}

static bool take_held(uint64_t now_ns)
{
	uint8_t record[HELD_BYTES];
	struct syn syn;
	if (!held || !frame_can_answer())
		return false;
	if (!platform_network_held(record)) {
		held = false;
		return false;
	}
	if (!packets_read_syn(record, &syn))
		return true;
	if (enabled)
		opened_take(&syn, now_ns);
	else
		opened_deny(&syn);
	return true;
}

static bool take_accepted(void)
{
	struct sockaddr_in6 peer = {0};
	struct sockaddr_in6 local = {0};
	socklen_t peer_size = sizeof peer;
	socklen_t local_size = sizeof local;
	struct tuple tuple;
	if (!acceptable)
		return false;
	int fd = accept4(sockets.listener, (struct sockaddr *)&peer, &peer_size, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		acceptable = errno != EAGAIN;
		return false;
	}
	getsockname(fd, (struct sockaddr *)&local, &local_size);
	memcpy(tuple.remote, &peer.sin6_addr, ADDRESS_BYTES);
	memcpy(tuple.local, &local.sin6_addr, ADDRESS_BYTES);
	tuple.remote_port = ntohs(peer.sin6_port);
	tuple.local_port = ntohs(local.sin6_port);
	opened_accept(fd, &tuple);
	return true;
}

bool network_pump(uint64_t now_ns)
{
	bool moved = false;
	if (!available)
		return false;
	if (changed)
		platform_network_read_addresses();
	changed = false;
	for (unsigned i = 0; i < BATCH_COUNT; i++) {
		moved |= take_accepted();
		moved |= take_held(now_ns);
	}
	return moved | resolver_pump(now_ns);
}

uint64_t network_deadline(void)
{
	return available ? resolver_deadline() : UINT64_MAX;
}

void network_begin_command(const char *hostname, bool alone)
{
	if (!available)
		return;
	resolver_set_hostname(hostname);
	if (alone)
		platform_network_serve_loopback();
}

static void turn(bool on)
{
	enabled = on;
	resolver_switch(on);
}

void network_lose_host(void)
{
	resolver_fail();
}

void network_reset(void)
{
	turn(false);
}

bool network_switch(const struct frame *frame)
{
	uint32_t flags = get_u32(frame->payload);
	if ((flags & ~(uint32_t)NETWORK_FLAG_ON) != 0)
		return false;
	bool on = flags != 0;
	if (!available) {
		frame_send_problem(frame->session, &unavailable);
		return true;
	}
	struct problem problem;
	if (on && !platform_network_reach(&problem)) {
		frame_send_problem(frame->session, &problem);
		return true;
	}
	turn(on);
	frame_send_done(frame->session, 0);
	return true;
}

bool network_resolved(const struct frame *frame)
{
	return resolver_resolved(frame->session, get_u32(frame->payload));
}
