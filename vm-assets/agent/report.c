#include "report.h"

#include <fcntl.h>
#include <sys/socket.h>

bool report_pair(int pair[2])
{
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		return false;
	return fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0;
}

void report_send(int fd, const struct report *report)
{
	/* Sending fails only when the agent is gone; otherwise the agent notices the death of the child. */
	if (send(fd, report, sizeof *report, MSG_NOSIGNAL) < 0)
		return;
}

enum report_kind report_receive(int fd, struct report *report)
{
	if (fd < 0 || recv(fd, report, sizeof *report, MSG_DONTWAIT) != (ssize_t)sizeof *report)
		return REPORT_NONE;
	return report->kind;
}
