#include "packets.h"

#include <assert.h>
#include <netinet/in.h>

#include "../bytes.h"

#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define TCP_BYTES_MIN 20
#define ICMP_BYTES 8
#define UDP_BYTES 8
#define HOPS 64
/* Offsets and flags of a TCP header. */
#define TCP_ACKNOWLEDGED 8
#define TCP_OFFSET 12
#define TCP_FLAGS 13
#define TCP_CHECKSUM 16
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define ICMP_UNREACHABLE 3
#define ICMPV6_UNREACHABLE 1

_Static_assert(PACKET_BYTES_MAX >= IPV6_BYTES + ICMP_BYTES + IPV6_BYTES + TCP_BYTES_MIN, "a refusal fits");

/* One direction of a packet. */
struct route {
	const uint8_t *from;
	const uint8_t *to;
};

static struct route to_remote(const struct tuple *tuple)
{
	return (struct route){tuple->local, tuple->remote};
}

static struct route to_local(const struct tuple *tuple)
{
	return (struct route){tuple->remote, tuple->local};
}

bool packets_read_syn(const uint8_t record[HELD_BYTES], struct syn *syn)
{
	const uint8_t *tcp = record + HELD_IP_BYTES;
	uint32_t length = get_u32(record + HELD_IP_BYTES + HELD_TCP_BYTES_MAX);
	*syn = (struct syn){0};
	/* A packet with options or extension headers would have more between the two copies. */
	if (record[0] == 0x45 && record[9] == IPPROTO_TCP) {
		address_of_ipv4(syn->tuple.remote, record + 12);
		address_of_ipv4(syn->tuple.local, record + 16);
	} else if (record[0] >> 4 == 6 && record[6] == IPPROTO_TCP) {
		memcpy(syn->tuple.remote, record + 8, ADDRESS_BYTES);
		memcpy(syn->tuple.local, record + 24, ADDRESS_BYTES);
		/* These are for IPv4 sockets; no packet may have them. */
		if (address_is_ipv4(syn->tuple.remote) || address_is_ipv4(syn->tuple.local))
			return false;
	} else {
		return false;
	}
	if (length < TCP_BYTES_MIN || length > HELD_TCP_BYTES_MAX || length != (size_t)(tcp[TCP_OFFSET] >> 4) * 4 ||
		(tcp[TCP_FLAGS] & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
		return false;
	syn->tuple.remote_port = get_net16(tcp);
	syn->tuple.local_port = get_net16(tcp + 2);
	syn->sequence = get_net32(tcp + 4);
	memcpy(syn->header, tcp, length);
	syn->header_bytes = length;
	return syn->tuple.remote_port != 0 && syn->tuple.local_port != 0;
}

/* Adds 16-bit words in network order. */
static uint32_t sum(uint32_t total, const uint8_t *bytes, size_t size)
{
	for (; size > 1; bytes += 2, size -= 2)
		total += get_net16(bytes);
	return size > 0 ? total + ((uint32_t)bytes[0] << 8) : total;
}

static uint16_t fold(uint32_t total)
{
	while (total >> 16 != 0)
		total = (total & 0xffff) + (total >> 16);
	return (uint16_t)~total;
}

/* Checksum over the pseudo header of a protocol, and the bytes. */
static uint16_t checksum(const struct route *route, unsigned protocol, const uint8_t *bytes, size_t size)
{
	size_t skip = address_is_ipv4(route->to) ? ADDRESS_IPV4_AT : 0;
	uint32_t total = (uint32_t)size + protocol;
	total = sum(total, route->from + skip, ADDRESS_BYTES - skip);
	total = sum(total, route->to + skip, ADDRESS_BYTES - skip);
	return fold(sum(total, bytes, size));
}

/* Writes an IP header for a payload, and returns its length. */
static size_t ip_header(const struct route *route, unsigned protocol, size_t payload, uint8_t *packet)
{
	if (address_is_ipv4(route->to)) {
		memset(packet, 0, IPV4_BYTES);
		packet[0] = 0x45;
		put_net16(packet + 2, (uint16_t)(IPV4_BYTES + payload));
		packet[8] = HOPS;
		packet[9] = (uint8_t)protocol;
		memcpy(packet + 12, route->from + ADDRESS_IPV4_AT, 4);
		memcpy(packet + 16, route->to + ADDRESS_IPV4_AT, 4);
		put_net16(packet + 10, fold(sum(0, packet, IPV4_BYTES)));
		return IPV4_BYTES;
	}
	memset(packet, 0, IPV6_BYTES);
	packet[0] = 0x60;
	put_net16(packet + 4, (uint16_t)payload);
	packet[6] = (uint8_t)protocol;
	packet[7] = HOPS;
	memcpy(packet + 8, route->from, ADDRESS_BYTES);
	memcpy(packet + 24, route->to, ADDRESS_BYTES);
	return IPV6_BYTES;
}

size_t packets_syn(const struct syn *syn, uint8_t *packet)
{
	struct route route = to_local(&syn->tuple);
	size_t ip = ip_header(&route, IPPROTO_TCP, syn->header_bytes, packet);
	uint8_t *tcp = packet + ip;
	memcpy(tcp, syn->header, syn->header_bytes);
	/* The kernel computes no checksums on the loopback interface, so the copy has none. */
	put_net16(tcp + TCP_CHECKSUM, 0);
	put_net16(tcp + TCP_CHECKSUM, checksum(&route, IPPROTO_TCP, tcp, syn->header_bytes));
	return ip + syn->header_bytes;
}

size_t packets_reset(const struct syn *syn, uint8_t *packet)
{
	struct route route = to_remote(&syn->tuple);
	size_t ip = ip_header(&route, IPPROTO_TCP, TCP_BYTES_MIN, packet);
	uint8_t *tcp = packet + ip;
	memset(tcp, 0, TCP_BYTES_MIN);
	put_net16(tcp, syn->tuple.local_port);
	put_net16(tcp + 2, syn->tuple.remote_port);
	put_net32(tcp + TCP_ACKNOWLEDGED, syn->sequence + 1);
	tcp[TCP_OFFSET] = TCP_BYTES_MIN / 4 << 4;
	tcp[TCP_FLAGS] = TCP_RST | TCP_ACK;
	put_net16(tcp + TCP_CHECKSUM, checksum(&route, IPPROTO_TCP, tcp, TCP_BYTES_MIN));
	return ip + TCP_BYTES_MIN;
}

size_t packets_unreachable(const struct syn *syn, uint8_t code_ipv4, uint8_t code_ipv6, uint8_t *packet)
{
	struct route route = to_remote(&syn->tuple);
	struct route back = to_local(&syn->tuple);
	bool ipv4 = address_is_ipv4(route.to);
	size_t quoted = (ipv4 ? IPV4_BYTES : IPV6_BYTES) + TCP_BYTES_MIN;
	size_t ip = ip_header(&route, ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6, ICMP_BYTES + quoted, packet);
	uint8_t *icmp = packet + ip;
	memset(icmp, 0, ICMP_BYTES);
	icmp[0] = ipv4 ? ICMP_UNREACHABLE : ICMPV6_UNREACHABLE;
	icmp[1] = ipv4 ? code_ipv4 : code_ipv6;
	/* The beginning of the packet that could not be delivered, by which the kernel finds the socket. */
	size_t header = ip_header(&back, IPPROTO_TCP, syn->header_bytes, icmp + ICMP_BYTES);
	memcpy(icmp + ICMP_BYTES + header, syn->header, TCP_BYTES_MIN);
	put_net16(icmp + 2, ipv4 ? fold(sum(0, icmp, ICMP_BYTES + quoted))
				 : checksum(&route, IPPROTO_ICMPV6, icmp, ICMP_BYTES + quoted));
	return ip + ICMP_BYTES + quoted;
}

size_t packets_datagram(const struct tuple *tuple, const uint8_t *payload, size_t size, uint8_t *packet)
{
	struct route route = to_remote(tuple);
	assert(size <= DATAGRAM_BYTES_MAX);
	size_t ip = ip_header(&route, IPPROTO_UDP, UDP_BYTES + size, packet);
	uint8_t *udp = packet + ip;
	put_net16(udp, tuple->local_port);
	put_net16(udp + 2, tuple->remote_port);
	put_net16(udp + 4, (uint16_t)(UDP_BYTES + size));
	put_net16(udp + 6, 0);
	memcpy(udp + UDP_BYTES, payload, size);
	uint16_t check = checksum(&route, IPPROTO_UDP, udp, UDP_BYTES + size);
	/* 0 means that there is no checksum, which IPv6 forbids. */
	put_net16(udp + 6, check == 0 ? 0xffff : check);
	return ip + UDP_BYTES + size;
}
