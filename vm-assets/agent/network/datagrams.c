#include "datagrams.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "../platform.h"
#include "../poller.h"
#include "question.h"
#include "source.h"

_Static_assert(ANSWER_BYTES_MAX <= DATAGRAM_BYTES_MAX, "every answer fits a datagram");

static int socket_fd = -1;
static bool readable;

void datagrams_open(int fd)
{
	socket_fd = fd;
	readable = true;
	poller_add(fd, EPOLLIN | EPOLLET, network_key(SOURCE_DATAGRAMS, 0));
}

void datagrams_ready(void)
{
	readable = true;
}

int datagrams_read(uint8_t *message, struct asker *asker)
{
	struct sockaddr_in6 peer = {0};
	union {
		struct cmsghdr first;
		uint8_t bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
	} control;
	struct iovec part = {message, MESSAGE_BYTES_MAX};
	struct msghdr header = {
		.msg_name = &peer,
		.msg_namelen = sizeof peer,
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof control,
	};
	if (!readable)
		return -1;
	ssize_t size = recvmsg(socket_fd, &header, MSG_DONTWAIT);
	if (size < 0) {
		readable = errno != EAGAIN;
		return -1;
	}
	*asker = (struct asker){.tuple = {.remote_port = ntohs(peer.sin6_port), .local_port = 53}};
	memcpy(asker->tuple.remote, &peer.sin6_addr, ADDRESS_BYTES);
	/* No other control message was requested. */
	struct cmsghdr *at = CMSG_FIRSTHDR(&header);
	struct in6_pktinfo info;
	if (at != NULL && at->cmsg_level == IPPROTO_IPV6 && at->cmsg_type == IPV6_PKTINFO &&
		at->cmsg_len >= CMSG_LEN(sizeof info)) {
		memcpy(&info, CMSG_DATA(at), sizeof info);
		memcpy(asker->tuple.local, &info.ipi6_addr, ADDRESS_BYTES);
		asker->interface = info.ipi6_ifindex;
	}
	/* Longer messages are cut, and then malformed. */
	return (int)size;
}

void datagrams_reply(const struct asker *asker, const uint8_t *message, size_t size)
{
	/* A socket has only one port, and the answer must come from the port that was asked. */
	uint8_t packet[PACKET_BYTES_MAX];
	size_t length = packets_datagram(&asker->tuple, message, size, packet);
	platform_network_send(packet, length, asker->tuple.remote, asker->interface);
}
