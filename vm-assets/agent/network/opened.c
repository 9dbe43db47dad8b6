#include "opened.h"

#include <sys/socket.h>
#include <unistd.h>

#include "../bytes.h"
#include "../clock.h"
#include "../duplex.h"
#include "../platform.h"
#include "../protocol.h"
#include "../session.h"
#include "names.h"

/* A program whose SYN was sent again, and that did not complete the connection meanwhile, has given up. */
#define ACCEPT_NS 3000000000ULL
/* A SYN that was repeated while its refusal was on its way gets the same refusal, and the host is not asked again. */
#define REPEAT_NS 3000000000ULL
#define REFUSALS_COUNT 64

enum state { STATE_HELD, STATE_ACCEPTED, STATE_OPEN };

struct opened {
	bool used;
	enum state state;
	int name; /* entry in the table of names, or NAMES_NONE */
	uint64_t deadline_ns;
	struct syn syn;
	struct duplex duplex;
};

static struct opened opened[CONNECTIONS_COUNT_MAX];
static const struct session_kind opened_kind;

/* The last refusals. */
static struct {
	struct tuple tuple;
	uint32_t sequence;
	uint32_t reason; /* 0: none */
	uint64_t end_ns;
} refusals[REFUSALS_COUNT];
static unsigned refusals_next;

/* The packet for the program's kernel, and the result of connect(2). */
enum answer_kind { ANSWER_NONE, ANSWER_RESET, ANSWER_UNREACHABLE };
static const struct {
	enum answer_kind kind;
	uint8_t code_ipv4;
	uint8_t code_ipv6;
} answers[] = {
	[REFUSAL_DENIED] = {ANSWER_UNREACHABLE, 13, 1}, /* EHOSTUNREACH; EACCES */
	[REFUSAL_REFUSED] = {ANSWER_RESET, 0, 0}, /* ECONNREFUSED */
	[REFUSAL_UNREACHABLE] = {ANSWER_UNREACHABLE, 1, 3}, /* EHOSTUNREACH */
	[REFUSAL_TIMED_OUT] = {ANSWER_UNREACHABLE, 1, 3},
	[REFUSAL_NAME_GONE] = {ANSWER_UNREACHABLE, 1, 3},
	[REFUSAL_LIMITED] = {ANSWER_NONE, 0, 0}, /* the kernel repeats the SYN after a second */
	[REFUSAL_NO_NETWORK] = {ANSWER_UNREACHABLE, 0, 0}, /* ENETUNREACH */
};

static struct opened *opened_of(const struct session *session)
{
	return &opened[session->slot];
}

static void answer(const struct syn *syn, uint32_t reason)
{
	uint8_t packet[PACKET_BYTES_MAX];
	size_t size = 0;
	if (answers[reason].kind == ANSWER_RESET)
		size = packets_reset(syn, packet);
	else if (answers[reason].kind == ANSWER_UNREACHABLE)
		size = packets_unreachable(syn, answers[reason].code_ipv4, answers[reason].code_ipv6, packet);
	if (size > 0)
		platform_network_send(packet, size, syn->tuple.remote, 0);
}

/* Sends the SYN again, so that the kernel answers it. */
static void release(const struct syn *syn)
{
	uint8_t packet[PACKET_BYTES_MAX];
	platform_network_send(packet, packets_syn(syn, packet), syn->tuple.local, 0);
}

static void remember(const struct syn *syn, uint32_t reason)
{
	/* The request must be sent to the host again. */
	if (reason == REFUSAL_LIMITED)
		return;
	unsigned at = refusals_next++ % REFUSALS_COUNT;
	refusals[at].tuple = syn->tuple;
	refusals[at].sequence = syn->sequence;
	refusals[at].reason = reason;
	refusals[at].end_ns = clock_now() + REPEAT_NS;
}

/* Repeats a refusal of the same SYN. Returns false when there was none lately. */
static bool repeat_refusal(const struct syn *syn, uint64_t now_ns)
{
	for (unsigned i = 0; i < REFUSALS_COUNT; i++)
		if (refusals[i].reason != 0 && refusals[i].end_ns > now_ns && refusals[i].sequence == syn->sequence &&
			tuple_equal(&refusals[i].tuple, &syn->tuple)) {
			answer(syn, refusals[i].reason);
			return true;
		}
	return false;
}

/* Handles a SYN of a program that has a session already. Returns false when it begins another connection. */
static bool repeat(const struct syn *syn)
{
	for (unsigned i = 0; i < CONNECTIONS_COUNT_MAX; i++) {
		struct opened *at = &opened[i];
		if (!at->used || !tuple_equal(&at->syn.tuple, &syn->tuple))
			continue;
		/* The program has used the same port again: with another sequence number it is another connection. */
		if (at->state == STATE_OPEN && at->syn.sequence != syn->sequence)
			continue;
		if (at->state != STATE_OPEN)
			at->syn = *syn;
		if (at->state == STATE_ACCEPTED)
			release(syn);
		return true;
	}
	return false;
}

/* Sends NET_OPEN: the name that the address stands for, or the address. */
static void announce(const struct session *session)
{
	const struct opened *at = opened_of(session);
	const struct tuple *tuple = &at->syn.tuple;
	uint8_t payload[4 + NAME_BYTES_MAX];
	bool ipv4 = address_is_ipv4(tuple->local);
	size_t size = ipv4 ? 4 : ADDRESS_BYTES;
	const void *host = ipv4 ? tuple->local + ADDRESS_IPV4_AT : tuple->local;
	if (at->name != NAMES_NONE)
		host = names_text(at->name, &size);
	put_u16(payload, tuple->local_port);
	payload[2] = at->name != NAMES_NONE ? ADDRESS_KIND_NAME : ipv4 ? ADDRESS_KIND_IPV4 : ADDRESS_KIND_IPV6;
	payload[3] = 0;
	memcpy(payload + 4, host, size);
	frame_send(AGENT_NET_OPEN, session->id, payload, 4 + size);
}

/* Handles a SYN for an address of the guest itself. Returns false when there is none. */
static bool take_own(const struct syn *syn)
{
	/*
	 * A program has just given this address to the guest: the kernel finds the program's listener now. Or it connects to the port
	 * of the agent's listener: it is accepted, and reset.
	 */
	if (!platform_network_owns(syn->tuple.local))
		return false;
	release(syn);
	return true;
}

void opened_deny(const struct syn *syn)
{
	if (!take_own(syn))
		answer(syn, REFUSAL_NO_NETWORK);
}

void opened_take(const struct syn *syn, uint64_t now_ns)
{
	if (repeat(syn) || repeat_refusal(syn, now_ns) || take_own(syn))
		return;
	struct session *session = session_open_guest(&opened_kind);
	if (session == NULL)
		return;
	struct opened *at = opened_of(session);
	*at = (struct opened){.used = true, .state = STATE_HELD, .syn = *syn};
	duplex_open(&at->duplex, session->slot);
	at->name = names_of_address(syn->tuple.local);
	names_hold(at->name);
	announce(session);
}

static struct session *find_accepted(const struct tuple *tuple)
{
	for (unsigned i = 0; i < CONNECTIONS_COUNT_MAX; i++)
		if (opened[i].used && opened[i].state == STATE_ACCEPTED && tuple_equal(&opened[i].syn.tuple, tuple))
			return session_at(SESSION_CONNECTION, i);
	return NULL;
}

void opened_accept(int fd, const struct tuple *tuple)
{
	const int off = 0;
	const struct linger now = {.l_onoff = 1, .l_linger = 0};
	struct session *session = find_accepted(tuple);
	/* Without a session, the host has reset it already, the program was too late, or a program forged the agent's mark. */
	if (session == NULL) {
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
		close(fd);
		return;
	}
	/* The filter of the listener concerns only SYNs. */
	setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &off, sizeof off);
	session_watch(session, fd, WATCH_INPUT);
	/* Without a descriptor the deadline passes. */
	if (duplex_attach(&opened_of(session)->duplex, session, fd))
		opened_of(session)->state = STATE_OPEN;
	else
		close(fd);
}

static bool take_held(struct session *session, const struct frame *frame)
{
	struct opened *at = opened_of(session);
	uint32_t reason;
	switch (frame->type) {
	case HOST_NET_ACCEPT:
		at->state = STATE_ACCEPTED;
		at->deadline_ns = clock_now() + ACCEPT_NS;
		release(&at->syn);
		return true;
	case HOST_NET_REFUSE:
		reason = get_u32(frame->payload);
		if (reason == 0 || reason > REFUSAL_NO_NETWORK)
			return false;
		answer(&at->syn, reason);
		remember(&at->syn, reason);
		session_close(session);
		return true;
	case HOST_NET_RESET:
		answer(&at->syn, REFUSAL_REFUSED);
		duplex_reset(&at->duplex, session);
		return true;
	default:
		return false;
	}
}

static bool opened_frame(struct session *session, const struct frame *frame)
{
	struct opened *at = opened_of(session);
	return at->state == STATE_HELD ? take_held(session, frame) : duplex_take(&at->duplex, session, frame);
}

static bool opened_grant(struct session *session, uint32_t stream, uint32_t bytes)
{
	struct opened *at = opened_of(session);
	return at->state != STATE_HELD && duplex_grant(&at->duplex, stream, bytes);
}

static void opened_ready(struct session *session, enum watch watch)
{
	struct opened *at = opened_of(session);
	if (at->state == STATE_OPEN)
		duplex_ready(&at->duplex, watch);
}

static bool opened_pump(struct session *session, uint64_t now_ns)
{
	struct opened *at = opened_of(session);
	if (at->state == STATE_OPEN)
		return duplex_pump(&at->duplex, session, now_ns);
	if (at->state == STATE_HELD || now_ns < at->deadline_ns || !frame_can_answer())
		return false;
	duplex_reset(&at->duplex, session);
	return true;
}

static uint64_t opened_deadline(const struct session *session)
{
	const struct opened *at = opened_of(session);
	if (at->state == STATE_OPEN)
		return outflow_deadline(&at->duplex.out);
	return at->state == STATE_ACCEPTED ? at->deadline_ns : UINT64_MAX;
}

/* A copy of the machine would wait for an answer that another host got. */
static bool opened_settled(const struct session *session)
{
	return opened_of(session)->state == STATE_OPEN;
}

/* What the host has not decided is asked again, when the program's kernel repeats the SYN. */
static void opened_lost(struct session *session)
{
	struct opened *at = opened_of(session);
	if (at->state == STATE_HELD)
		session_close(session);
	else
		duplex_reset(&at->duplex, session);
}

static void opened_close(struct session *session)
{
	struct opened *at = opened_of(session);
	names_release(at->name);
	duplex_close(&at->duplex);
	at->used = false;
}

static const struct session_kind opened_kind = {
	.class = SESSION_CONNECTION,
	.take = opened_frame,
	.grant = opened_grant,
	.ready = opened_ready,
	.pump = opened_pump,
	.deadline = opened_deadline,
	.settled = opened_settled,
	.lost = opened_lost,
	.close = opened_close,
};
