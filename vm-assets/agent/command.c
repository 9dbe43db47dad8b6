#include "command.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "platform.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
/* What service managers give: a soft limit that select(2) survives, a hard one for programs that raise it. */
#define FILES_SOFT_COUNT 1024
#define FILES_HARD_COUNT 524288

static const char *search_path(char **envp)
{
	for (; *envp != NULL; envp++)
		if (strncmp(*envp, "PATH=", 5) == 0)
			return *envp + 5;
	return PATH_DEFAULT;
}

/* Tries every directory of PATH; returns the error of execve that says most. */
static int exec_by_path(const struct spec *spec)
{
	const char *name = spec->argv[0];
	int result = ENOENT;
	char candidate[PATH_MAX];
	for (const char *at = search_path(spec->envp);; at++) {
		size_t length = strcspn(at, ":");
		/* An empty element is the working directory. */
		int size = snprintf(candidate, sizeof candidate, "%.*s/%s", length > 0 ? (int)length : 1,
			length > 0 ? at : ".", name);
		if (size > 0 && (size_t)size < sizeof candidate) {
			execve(candidate, spec->argv, spec->envp);
			if (errno == EACCES)
				result = EACCES;
			else if (errno != ENOENT && errno != ENOTDIR)
				return errno;
		}
		at += length;
		if (*at == '\0')
			return result;
	}
}

_Noreturn void command_run(const struct spec *spec)
{
	const char *name = spec->argv[0];
	sigset_t none;
	struct rlimit files = {FILES_SOFT_COUNT, FILES_HARD_COUNT};
	platform_become_ordinary();
	prctl(PR_SET_DUMPABLE, 1);
	setsid();
	setrlimit(RLIMIT_NOFILE, &files);
	umask(022);
	/* SIGCHLD is blocked in the reaper, whose mask this is. */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	int error;
	if (name[0] == '\0') {
		error = ENOENT;
	} else if (strchr(name, '/') != NULL) {
		execve(name, spec->argv, spec->envp);
		error = errno;
	} else {
		error = exec_by_path(spec);
	}
	bool missing = error == ENOENT || error == ENOTDIR;
	bool bare = missing && strchr(name, '/') == NULL;
	dprintf(STDERR_FILENO, "%s: %s\n", name, bare ? "command not found" : strerror(error));
	_exit(missing ? 127 : 126);
}
