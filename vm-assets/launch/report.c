/*
 * Reports the end of a monitor to a process that need not be the launcher's parent: the daemon that started the monitor may
 * be gone by then, and with it every pipe. Everything that comes from the monitor is hostile, so the report has a fixed
 * largest size, and the monitor has no descriptor of its file.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fail.h"
#include "report.h"

enum { TAIL_BYTES_MAX = 4096, CHUNK_BYTES = 4096, ESCAPED_BYTES_MAX = 6, FRAME_BYTES_MAX = 80 };

/* The end of the standard error. */
static unsigned char tail[TAIL_BYTES_MAX + CHUNK_BYTES];
static size_t tail_bytes;

void open_errors(const struct options *options, int errors[2])
{
	errors[0] = errors[1] = -1;
	if (options->report < 0)
		return;
	if (pipe2(errors, O_CLOEXEC) != 0 || fcntl(errors[0], F_SETFL, O_NONBLOCK) != 0)
		fail("pipe", "");
}

void use_errors(const int errors[2])
{
	if (errors[1] >= 0 && dup2(errors[1], STDERR_FILENO) < 0)
		fail("dup2", "stderr");
}

/* Returns false when there is nothing to read now, or nothing any more. */
static bool read_errors(int *errors)
{
	ssize_t count = read(*errors, tail + tail_bytes, CHUNK_BYTES);

	if (count < 0 && errno == EINTR)
		return true;
	if (count == 0) {
		close(*errors);
		*errors = -1;
	}
	if (count <= 0)
		return false;
	tail_bytes += (size_t)count;
	if (tail_bytes > TAIL_BYTES_MAX) {
		memmove(tail, tail + tail_bytes - TAIL_BYTES_MAX, TAIL_BYTES_MAX);
		tail_bytes = TAIL_BYTES_MAX;
	}
	return true;
}

/* A byte unties the program from the parent, and is answered; a hang-up means that nothing will untie it. */
static void answer_lease(int *lease)
{
	char byte;

	if (read(*lease, &byte, 1) == 1) {
		if (prctl(PR_SET_PDEATHSIG, 0) != 0)
			fail("pdeathsig", "lease");
		/* If the parent has died since, the program lives on as it was asked to. */
		if (write(*lease, &byte, 1) != 1)
			errno = 0;
	}
	close(*lease);
	*lease = -1;
}

/* Appends the text as it stands in a JSON string. Returns the number of bytes. */
static size_t escape(char *to, const unsigned char *text, size_t bytes)
{
	size_t length = 0;

	for (size_t i = 0; i < bytes; i++) {
		if (text[i] >= 0x20 && text[i] != '"' && text[i] != '\\')
			to[length++] = (char)text[i];
		else
			length += (size_t)sprintf(to + length, "\\u%04x", (unsigned)text[i]);
	}
	return length;
}

static void write_report(int fd, int status)
{
	static char line[FRAME_BYTES_MAX + TAIL_BYTES_MAX * ESCAPED_BYTES_MAX];
	size_t length;

	if (WIFEXITED(status))
		length = (size_t)sprintf(line, "{\"status\":%d,\"signal\":null,\"stderr\":\"", WEXITSTATUS(status));
	else
		length = (size_t)sprintf(line, "{\"status\":null,\"signal\":%d,\"stderr\":\"", WTERMSIG(status));
	length += escape(line + length, tail, tail_bytes);
	length += (size_t)sprintf(line + length, "\"}\n");
	/* On a full disk the line lacks its end, and a reader takes it for none. The launcher's own status says the rest. */
	if (write(fd, line, length) != (ssize_t)length)
		errno = 0;
}

int tend(const struct options *options, pid_t child, int errors)
{
	struct pollfd waited[3] = { { .events = POLLIN }, { .events = POLLIN }, { .events = POLLIN } };
	int lease = options->lease;
	int status;
	/* Readable when the child has ended. */
	int ended = (int)syscall(SYS_pidfd_open, child, 0);

	if (ended < 0)
		fail("pidfd", "");
	/* The other end of the lease may be gone. */
	if (lease >= 0)
		signal(SIGPIPE, SIG_IGN);
	while (waited[2].revents == 0) {
		waited[0].fd = errors;
		waited[1].fd = lease;
		waited[2].fd = ended;
		if (poll(waited, 3, -1) < 0) {
			if (errno != EINTR)
				fail("poll", "");
			continue;
		}
		if (errors >= 0 && waited[0].revents != 0)
			read_errors(&errors);
		if (lease >= 0 && waited[1].revents != 0)
			answer_lease(&lease);
	}
	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			fail("wait", "");
	}
	/* All writers were in the namespace that ended with the child, so this ends. */
	while (errors >= 0 && read_errors(&errors))
		;
	if (options->report >= 0)
		write_report(options->report, status);
	return status;
}
