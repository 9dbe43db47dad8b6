#include "command.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/users.h"
#include "platform.h"

#define PATH_DEFAULT "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
/* Limits of open files that service managers use: the soft limit is safe for select(2), and programs can raise it. */
#define FILES_SOFT_COUNT 1024
#define FILES_HARD_COUNT 524288

static const char *search_path(char **envp)
{
	for (; *envp != NULL; envp++)
		if (strncmp(*envp, "PATH=", 5) == 0)
			return *envp + 5;
	return PATH_DEFAULT;
}

/* Tries every directory of PATH. Returns the most informative errno of execve. */
static int exec_by_path(const struct spec *spec)
{
	const char *name = spec->argv[0];
	int result = ENOENT;
	char candidate[PATH_MAX];
	for (const char *at = search_path(spec->envp);; at++) {
		size_t length = strcspn(at, ":");
		/* An empty element stands for the working directory. */
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

void command_begin(const struct identity *identity)
{
	setsid();
	if (identity->terminal)
		ioctl(STDIN_FILENO, TIOCSCTTY, 0);
	/* Otherwise the command could not open its streams again through /dev/stdout and the like. */
	struct stat status;
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && identity->uid != 0; fd++)
		if (fstat(fd, &status) == 0 && (S_ISFIFO(status.st_mode) || identity->terminal) &&
		    fchown(fd, identity->uid, (gid_t)-1) != 0)
			dprintf(STDERR_FILENO, "owner of stream %d: %s\n", fd, strerror(errno));
}

_Noreturn void command_run(const struct spec *spec, const struct identity *identity)
{
	const char *name = spec->argv[0];
	sigset_t none;
	struct rlimit files = {FILES_SOFT_COUNT, FILES_HARD_COUNT};
	platform_become_ordinary();
	setrlimit(RLIMIT_NOFILE, &files);
	umask(022);
	/* The reaper blocks signals, and the command inherits the mask. */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	int error;
	if (!users_become(identity->uid, identity->gid, identity->groups, identity->group_count)) {
		dprintf(STDERR_FILENO, "user %u, group %u: %s\n", identity->uid, identity->gid, strerror(errno));
		_exit(126);
	}
	/* After the change of user, which resets it. */
	prctl(PR_SET_DUMPABLE, 1);
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
