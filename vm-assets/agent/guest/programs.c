#include "programs.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../network/packets.h"
#include "bpf.h"
#include "guest.h"

#define PORT_QUESTIONS 53

/* Registers that a call of a function keeps, and that carry its arguments and result. */
#define R0 BPF_REG_0
#define R1 BPF_REG_1
#define R2 BPF_REG_2
#define R3 BPF_REG_3
#define R4 BPF_REG_4
#define R5 BPF_REG_5
#define R6 BPF_REG_6
#define R7 BPF_REG_7
#define R8 BPF_REG_8
#define R9 BPF_REG_9

#define LOOKUP(member) (int)offsetof(struct bpf_sk_lookup, member)

/* Places on the stack of the steering program. */
#define ADDRESS_AT (-ADDRESS_BYTES)
#define ENTRY_AT (ADDRESS_AT - 8)

/* Labels of the steering program. */
enum { IPV6, OUTSIDE, DATAGRAM, LOOPBACK, STREAM_QUESTION, ASSIGN, DROP, PASS };

/* Puts the destination, as 16 bytes, on the stack. Jumps to a label for loopback addresses and groups. */
static void read_destination(struct assembly *p)
{
	load(p, BPF_W, R1, R6, LOOKUP(family));
	jump_if(p, BPF_JEQ, R1, AF_INET6, IPV6);
	load(p, BPF_W, R1, R6, LOOKUP(local_ip4));
	store_value(p, BPF_W, ADDRESS_AT, 0);
	store_value(p, BPF_W, ADDRESS_AT + 4, 0);
	store_value(p, BPF_W, ADDRESS_AT + 8, (int32_t)htonl(0xffff));
	store(p, BPF_W, ADDRESS_AT + 12, R1);
	/* The first byte, in network order. */
	compute(p, BPF_AND, R1, 0xff);
	jump_if(p, BPF_JEQ, R1, 127, LOOPBACK);
	jump_if(p, BPF_JGE, R1, 224, PASS);
	jump(p, OUTSIDE);
	place(p, IPV6);
	set(p, R5, 0);
	for (int i = 0; i < 4; i++) {
		load(p, BPF_W, R1, R6, LOOKUP(local_ip6[0]) + 4 * i);
		store(p, BPF_W, ADDRESS_AT + 4 * i, R1);
		if (i < 3)
			emit(p, BPF_ALU64 | BPF_OR | BPF_X, R5, R1, 0, 0);
	}
	load(p, BPF_B, R2, BPF_REG_10, ADDRESS_AT);
	jump_if(p, BPF_JEQ, R2, 0xff, PASS);
	/* ::1 and ::, which is never a destination. Addresses ::a.b.c.d are not in use either. */
	jump_if(p, BPF_JEQ, R5, 0, LOOPBACK);
}

static void write_steering(struct assembly *p, const struct network_maps *maps)
{
	move(p, R6, R1);
	load(p, BPF_W, R7, R6, LOOKUP(protocol));
	load(p, BPF_W, R8, R6, LOOKUP(local_port));
	read_destination(p);

	place(p, OUTSIDE);
	use_map(p, R1, maps->own);
	point(p, R2, ADDRESS_AT);
	call(p, BPF_FUNC_map_lookup_elem);
	jump_if(p, BPF_JNE, R0, 0, PASS);
	set(p, R9, SOCKET_CONNECTIONS);
	jump_if(p, BPF_JEQ, R7, IPPROTO_UDP, DATAGRAM);
	jump_if(p, BPF_JEQ, R8, PORT_QUESTIONS, STREAM_QUESTION);
	jump(p, ASSIGN);

	place(p, DATAGRAM);
	/* Dropped in the lookup, a datagram gets the answer of a closed port, so programs try TCP at once. */
	jump_if(p, BPF_JNE, R8, PORT_QUESTIONS, DROP);
	set(p, R9, SOCKET_QUESTIONS);
	jump(p, ASSIGN);

	place(p, LOOPBACK);
	jump_if(p, BPF_JNE, R8, PORT_QUESTIONS, PASS);
	store_value(p, BPF_W, ENTRY_AT, 0);
	use_map(p, R1, maps->flags);
	point(p, R2, ENTRY_AT);
	call(p, BPF_FUNC_map_lookup_elem);
	jump_if(p, BPF_JEQ, R0, 0, PASS);
	load(p, BPF_W, R1, R0, 0);
	jump_if(p, BPF_JEQ, R1, 0, PASS);
	set(p, R9, SOCKET_QUESTIONS);
	jump_if(p, BPF_JEQ, R7, IPPROTO_UDP, ASSIGN);

	place(p, STREAM_QUESTION);
	set(p, R9, SOCKET_QUESTION_STREAMS);

	place(p, ASSIGN);
	store(p, BPF_W, ENTRY_AT, R9);
	use_map(p, R1, maps->sockets);
	point(p, R2, ENTRY_AT);
	call(p, BPF_FUNC_map_lookup_elem);
	jump_if(p, BPF_JEQ, R0, 0, DROP);
	move(p, R7, R0);
	move(p, R1, R6);
	move(p, R2, R0);
	set(p, R3, 0);
	call(p, BPF_FUNC_sk_assign);
	move(p, R1, R7);
	call(p, BPF_FUNC_sk_release);

	place(p, PASS);
	leave(p, SK_PASS);
	place(p, DROP);
	leave(p, SK_DROP);
}

bool programs_steer(const struct network_maps *maps, struct problem *problem)
{
	struct assembly assembly = {.count = 0};
	write_steering(&assembly, maps);
	int program = bpf_load(&assembly, BPF_PROG_TYPE_SK_LOOKUP, BPF_SK_LOOKUP, "program of the lookup", problem);
	if (program < 0)
		return false;
	int space = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	/* The link lives as long as its descriptor, which is never closed. */
	int link = bpf_link(program, space, BPF_SK_LOOKUP, "lookup of sockets", problem);
	close(space);
	close(program);
	return link >= 0;
}

/* A record of the ring, on the stack: the beginning of the IP packet, the TCP header, its length. */
#define RECORD_AT (-((HELD_BYTES + 7) / 8 * 8))
#define RECORD_TCP_AT (RECORD_AT + HELD_IP_BYTES)
#define RECORD_LENGTH_AT (RECORD_TCP_AT + HELD_TCP_BYTES_MAX)
#define TCP_FLAGS 13
#define TCP_BYTES_MIN 20
#define FLAGS_SYN_ACK 0x12
#define FLAG_SYN 0x02

enum { ACCEPT, HOLD_END };

static void write_holding(struct assembly *p, const struct network_maps *maps)
{
	move(p, R6, R1);
	/* For a filter, the packet begins with the TCP header. */
	emit(p, BPF_LD | BPF_ABS | BPF_B, 0, 0, 0, TCP_FLAGS);
	compute(p, BPF_AND, R0, FLAGS_SYN_ACK);
	jump_if(p, BPF_JNE, R0, FLAG_SYN, ACCEPT);
	load(p, BPF_W, R1, R6, (int)offsetof(struct __sk_buff, mark));
	jump_if(p, BPF_JEQ, R1, NETWORK_MARK, ACCEPT);
	load(p, BPF_W, R7, R6, (int)offsetof(struct __sk_buff, len));
	/* The kernel's verifier requires a check of the length before the copy. */
	jump_if(p, BPF_JLT, R7, TCP_BYTES_MIN, HOLD_END);
	jump_if(p, BPF_JGT, R7, HELD_TCP_BYTES_MAX, HOLD_END);
	for (int at = RECORD_AT; at < 0; at += 8)
		store_value(p, BPF_DW, at, 0);
	move(p, R1, R6);
	set(p, R2, 0);
	point(p, R3, RECORD_AT);
	set(p, R4, HELD_IP_BYTES);
	set(p, R5, BPF_HDR_START_NET);
	call(p, BPF_FUNC_skb_load_bytes_relative);
	jump_if(p, BPF_JNE, R0, 0, HOLD_END);
	move(p, R1, R6);
	set(p, R2, 0);
	point(p, R3, RECORD_TCP_AT);
	move(p, R4, R7);
	call(p, BPF_FUNC_skb_load_bytes);
	jump_if(p, BPF_JNE, R0, 0, HOLD_END);
	store(p, BPF_W, RECORD_LENGTH_AT, R7);
	use_map(p, R1, maps->held);
	point(p, R2, RECORD_AT);
	set(p, R3, HELD_BYTES);
	set(p, R4, 0);
	call(p, BPF_FUNC_ringbuf_output);
	/* Dropped without an answer, the SYN leaves the program waiting. A full ring does the same. */
	place(p, HOLD_END);
	leave(p, 0);
	place(p, ACCEPT);
	leave(p, -1);
}

bool programs_hold(const struct network_maps *maps, int listener, struct problem *problem)
{
	struct assembly assembly = {.count = 0};
	write_holding(&assembly, maps);
	int program = bpf_load(&assembly, BPF_PROG_TYPE_SOCKET_FILTER, 0, "program of the filter", problem);
	if (program < 0)
		return false;
	int result = setsockopt(listener, SOL_SOCKET, SO_ATTACH_BPF, &program, sizeof program);
	int error = errno;
	close(program);
	return result == 0 ? true : problem_set(problem, error, "filter of SYNs");
}

enum { OTHER };

static bool yield_of(const struct network_maps *maps, int cgroup, unsigned attach, struct problem *problem)
{
	struct assembly assembly = {.count = 0};
	struct assembly *p = &assembly;
	move(p, R6, R1);
	load(p, BPF_W, R1, R6, (int)offsetof(struct bpf_sock, src_port));
	jump_if(p, BPF_JNE, R1, PORT_QUESTIONS, OTHER);
	/* Other network namespaces have loopback addresses of their own. Without a socket, it is the first namespace. */
	move(p, R1, R6);
	call(p, BPF_FUNC_get_netns_cookie);
	move(p, R7, R0);
	set(p, R1, 0);
	call(p, BPF_FUNC_get_netns_cookie);
	emit(p, BPF_ALU64 | BPF_SUB | BPF_X, R0, R7, 0, 0);
	jump_if(p, BPF_JNE, R0, 0, OTHER);
	store_value(p, BPF_W, -4, 0);
	store_value(p, BPF_W, -8, 0);
	use_map(p, R1, maps->flags);
	point(p, R2, -4);
	point(p, R3, -8);
	set(p, R4, BPF_ANY);
	call(p, BPF_FUNC_map_update_elem);
	place(p, OTHER);
	leave(p, 1);
	int program = bpf_load(p, BPF_PROG_TYPE_CGROUP_SOCK, attach, "program of binds", problem);
	int link = program < 0 ? -1 : bpf_link(program, cgroup, attach, "hook of binds", problem);
	close(program);
	return link >= 0;
}

bool programs_yield(const struct network_maps *maps, struct problem *problem)
{
	int cgroup = open(CGROUP_ROOT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (cgroup < 0)
		return problem_set(problem, errno, "%s", CGROUP_ROOT);
	bool done = yield_of(maps, cgroup, BPF_CGROUP_INET4_POST_BIND, problem) &&
		    yield_of(maps, cgroup, BPF_CGROUP_INET6_POST_BIND, problem);
	close(cgroup);
	return done;
}
