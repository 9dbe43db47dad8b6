/* The programs that the kernel runs for the guest's network. */
#ifndef COPPICE_PROGRAMS_H
#define COPPICE_PROGRAMS_H

#include <stdbool.h>

#include "../problem.h"

/* The mark of packets that the agent sends itself, and the filter of held SYNs lets through. */
#define NETWORK_MARK 0x00c0ffee

/* Entries of the map of sockets. */
enum network_socket { SOCKET_CONNECTIONS, SOCKET_QUESTION_STREAMS, SOCKET_QUESTIONS, SOCKETS_COUNT };

struct network_maps {
	int sockets; /* by enum network_socket */
	int own; /* addresses of the guest itself */
	int flags; /* entry 0: questions to loopback addresses come to the agent */
	int held; /* ring of held SYNs */
};

/* Steers packets for addresses outside to the sockets. */
bool programs_steer(const struct network_maps *maps, struct problem *problem);
/* Holds the SYNs that arrive at a listener. */
bool programs_hold(const struct network_maps *maps, int listener, struct problem *problem);
/* Gives loopback addresses back to a name server of the guest: a bind of port 53 clears the flag. */
bool programs_yield(const struct network_maps *maps, struct problem *problem);

#endif
