/*
 * The guest agent, PID 1 of a sandbox's virtual machine. It has one loop with one epoll, and tables of fixed size. Events
 * are edge-triggered: a descriptor counts as ready until it returns EAGAIN.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>

#include "budget.h"
#include "frame.h"
#include "loop.h"
#include "log.h"
#include "network/network.h"
#include "platform.h"
#include "rings.h"
#include "transport.h"

int main(int argc, char **argv)
{
	static struct transport transport = {.fd = -1, .listener = -1};
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	struct rlimit descriptors;
	getrlimit(RLIMIT_NOFILE, &descriptors);
	if (descriptors.rlim_cur < DESCRIPTORS_COUNT_MAX)
		descriptors.rlim_cur = DESCRIPTORS_COUNT_MAX;
	if (setrlimit(RLIMIT_NOFILE, &descriptors) != 0)
		log_fatal("limit of descriptors: %s", strerror(errno));
	platform_start(argc, argv, &transport);
	frame_open(&transport);
	loop_open(&transport);
	if (!rings_prepare())
		log_fatal("rings: %s", strerror(errno));
	/* Before the first request is read: an answered SYNC means that the machine is complete. */
	platform_ready();
	network_open();
	loop_run();
}
