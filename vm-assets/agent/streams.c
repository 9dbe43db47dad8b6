#include "streams.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "platform.h"

/* Opens the other side of a terminal without a path; missing from some headers of the C library. */
#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

static const struct streams none = {{-1, -1, -1}, -1, -1, -1};

static void close_all(int *fds, int count)
{
	for (int i = 0; i < count; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

void streams_close_theirs(struct streams *streams)
{
	close_all(streams->theirs, 3);
}

void streams_close_ours(struct streams *streams)
{
	int ours[3] = {streams->in, streams->out, streams->err};
	close_all(ours, 3);
	streams->in = streams->out = streams->err = -1;
}

static bool fail(struct streams *streams, struct problem *problem, const char *what)
{
	problem_set(problem, errno, "%s of the command", what);
	streams_close_theirs(streams);
	streams_close_ours(streams);
	return false;
}

/* Opens a pipe. `our_end` is the index of the agent's end. */
static bool open_pipe(int *theirs, int *ours, int our_end)
{
	int fds[2];
	if (pipe2(fds, O_CLOEXEC) != 0)
		return false;
	*ours = fds[our_end];
	*theirs = fds[1 - our_end];
	return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

bool streams_pipes(struct streams *streams, bool has_stdin, struct problem *problem)
{
	*streams = none;
	if (!has_stdin)
		streams->theirs[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if ((has_stdin ? !open_pipe(&streams->theirs[0], &streams->in, 1) : streams->theirs[0] < 0) ||
	    !open_pipe(&streams->theirs[1], &streams->out, 0) || !open_pipe(&streams->theirs[2], &streams->err, 0))
		return fail(streams, problem, "pipes");
	return true;
}

static bool set_up(int terminal, unsigned rows, unsigned columns)
{
	struct termios settings;
	int locked = 0;
	if (ioctl(terminal, TIOCSPTLCK, &locked) != 0 || tcgetattr(terminal, &settings) != 0)
		return false;
	/* Backspace then erases characters, not bytes. */
	settings.c_iflag |= IUTF8;
	return tcsetattr(terminal, TCSANOW, &settings) == 0 && streams_resize(terminal, rows, columns);
}

bool streams_terminal(struct streams *streams, unsigned rows, unsigned columns, struct problem *problem)
{
	*streams = none;
	streams->out = platform_open_terminal(problem);
	if (streams->out < 0)
		return false;
	/* A descriptor for each direction, because they are closed separately. */
	streams->in = fcntl(streams->out, F_DUPFD_CLOEXEC, 0);
	if (streams->in < 0 || !set_up(streams->out, rows, columns))
		return fail(streams, problem, "terminal");
	for (int i = 0; i < 3; i++) {
		streams->theirs[i] = i == 0 ? ioctl(streams->out, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)
					  : fcntl(streams->theirs[0], F_DUPFD_CLOEXEC, 0);
		if (streams->theirs[i] < 0)
			return fail(streams, problem, "terminal");
	}
	return true;
}

bool streams_resize(int terminal, unsigned rows, unsigned columns)
{
	struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
	return ioctl(terminal, TIOCSWINSZ, &size) == 0;
}

int streams_end_byte(int terminal)
{
	struct termios settings;
	/* Shells that edit lines themselves also treat this byte as the end of input. 0 means that it is disabled. */
	if (tcgetattr(terminal, &settings) != 0 || settings.c_cc[VEOF] == 0)
		return -1;
	return settings.c_cc[VEOF];
}
