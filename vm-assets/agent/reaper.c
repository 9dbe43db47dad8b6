#include "reaper.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "files/users.h"
#include "platform.h"
#include "protocol.h"
#include "report.h"
#include "resolve.h"

/* Descriptors of the socket to the agent and of the reaper to join. All higher ones are closed. */
#define CONTROL_FD 3
#define JOIN_FD 4

static _Noreturn void fail(const struct problem *problem)
{
	struct report report = {.kind = REPORT_FAILED, .problem = *problem};
	report_send(CONTROL_FD, &report);
	_exit(1);
}

/* Moves the standard streams to 0 to 2, the control socket to 3 and the pidfd to join to 4; closes all others. */
static void arrange_descriptors(const struct reaper *reaper)
{
	/* The agent has 0 to 2 open, so all of these are above 2, and no dup2 overwrites one that is still needed. */
	for (int i = 0; i < 3; i++)
		if (dup2(reaper->streams[i], i) < 0)
			_exit(1);
	/* First moved above both target numbers, so that neither overwrites the other. */
	int control = fcntl(reaper->control, F_DUPFD_CLOEXEC, JOIN_FD + 1);
	int join = reaper->join < 0 ? -1 : fcntl(reaper->join, F_DUPFD_CLOEXEC, JOIN_FD + 1);
	if (dup3(control, CONTROL_FD, O_CLOEXEC) < 0 || (reaper->join >= 0 && dup3(join, JOIN_FD, O_CLOEXEC) < 0))
		_exit(1);
	syscall(SYS_close_range, reaper->join < 0 ? JOIN_FD : JOIN_FD + 1, ~0U, 0);
}

/* Resolves the user that the specification names in the new root, and gives the command what a login gives. */
static void find_user(struct spec *spec, struct identity *identity, struct user *user)
{
	static char variables[SPEC_VARIABLES_COUNT][sizeof "LOGNAME=" + USERS_LINE_BYTES_MAX];
	static const char *const names[SPEC_VARIABLES_COUNT] = {"HOME", "SHELL", "USER", "LOGNAME"};
	const char *const values[SPEC_VARIABLES_COUNT] = {user->home, user->shell, user->name, user->name};
	struct problem problem;
	if (!users_find(spec->user, user, &problem))
		fail(&problem);
	users_forget();
	identity->uid = user->uid;
	identity->gid = user->gid;
	identity->groups = user->groups;
	identity->group_count = user->group_count;
	for (int i = 0; i < SPEC_VARIABLES_COUNT; i++) {
		snprintf(variables[i], sizeof variables[i], "%s=%s", names[i], values[i]);
		if (values[i][0] != '\0')
			spec_add_variable(spec, variables[i]);
	}
}

/* Goes to the user's home, or to the root when there is none. */
static void enter_home(const char *home)
{
	struct problem problem;
	if (chdir(home) == 0 || chdir("/") == 0)
		return;
	problem_set(&problem, errno, "/");
	fail(&problem);
}

static void enter_directory(const char *cwd)
{
	struct problem problem;
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0) {
		problem_set(&problem, errno, "/");
		fail(&problem);
	}
	if (!resolve_make_directories(root, cwd, true, 0, &problem))
		fail(&problem);
	close(root);
	if (chdir(cwd) != 0) {
		problem_set(&problem, errno, "working directory %s", cwd);
		fail(&problem);
	}
}

/* Reaps dead processes, and reports the command's exit. */
static void reap(pid_t command)
{
	int status;
	pid_t pid;
	struct rusage usage;
	while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
		if (pid != command)
			continue;
		struct report report = {.kind = REPORT_EXITED, .value = status, .usage = usage};
		report_send(CONTROL_FD, &report);
	}
}

/* Reports the end of an idle command, after which the agent kills the namespaces. */
static void end_idle(int signal)
{
	struct report report = {.kind = REPORT_EXITED, .value = signal};
	report_send(CONTROL_FD, &report);
}

/* `command` is 0 when there is none. */
static _Noreturn void watch(pid_t command, int signals)
{
	struct pollfd fds[2] = {{.fd = signals, .events = POLLIN}, {.fd = CONTROL_FD, .events = POLLIN}};
	for (;;) {
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			_exit(1);
		struct signalfd_siginfo info;
		if ((fds[0].revents & POLLIN) != 0 && read(signals, &info, sizeof info) > 0)
			reap(command);
		struct reaper_signal order;
		bool ordered = (fds[1].revents & POLLIN) != 0 &&
			       recv(CONTROL_FD, &order, sizeof order, MSG_DONTWAIT) == sizeof order;
		if (ordered && command == 0)
			end_idle((int)order.number);
		/* The pid is valid, because only this process reaps. */
		else if (ordered && waitid(P_PID, (id_t)command, NULL, WEXITED | WNOHANG | WNOWAIT) == 0 &&
			 /* A command that has just been forked has no group yet. */
			 ((order.flags & SIGNAL_FLAG_GROUP) == 0 || kill(-command, (int)order.number) != 0))
			kill(command, (int)order.number);
		/* A reaper that is PID 1 takes its namespace with it; any other must kill the command. */
		if ((fds[1].revents & (POLLHUP | POLLERR)) != 0) {
			if (command != 0)
				kill(-command, SIGKILL);
			_exit(1);
		}
	}
}

/* Otherwise the command would inherit the signals that the agent ignores. */
static void reset_handlers(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	for (int number = 1; number < _NSIG; number++)
		sigaction(number, &action, NULL);
}

_Noreturn void reaper_run(const struct reaper *reaper)
{
	struct problem problem;
	struct spec *spec = reaper->spec;
	arrange_descriptors(reaper);
	reset_handlers();
	/* Prevents an unprivileged command from inspecting the reaper. */
	prctl(PR_SET_DUMPABLE, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	if (!spec_parse(spec, &problem))
		fail(&problem);
	if (reaper->join >= 0 ? !platform_join(JOIN_FD, &problem) : !platform_enter_root(spec->hostname, &problem))
		fail(&problem);
	if (reaper->join >= 0)
		close(JOIN_FD);
	struct identity identity = reaper->identity;
	struct user user;
	if (spec->user[0] != '\0')
		find_user(spec, &identity, &user);
	if (spec->cwd[0] == '\0')
		enter_home(user.home);
	else
		enter_directory(spec->cwd);
	sigset_t child;
	sigset_t all;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigfillset(&all);
	int signals = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	/* The command inherits the mask, so that no signal ends it before it has reported its start. */
	if (signals < 0 || sigprocmask(SIG_SETMASK, &all, NULL) != 0) {
		problem_set(&problem, errno, "signals of the reaper");
		fail(&problem);
	}
	/* Nothing in the namespaces can kill the reaper, so no process there ends an idle command. */
	pid_t command = reaper->identity.idle ? 0 : fork();
	if (command < 0) {
		problem_set(&problem, errno, "fork of the command");
		fail(&problem);
	}
	if (identity.idle) {
		struct report report = {.kind = REPORT_STARTED, .value = getpid()};
		report_send(CONTROL_FD, &report);
	} else if (command == 0) {
		command_begin(&identity);
		/* This is the pid in the command's own namespace. */
		struct report report = {.kind = REPORT_STARTED, .value = getpid()};
		report_send(CONTROL_FD, &report);
		command_run(spec, &identity);
	}
	/* Otherwise the streams would not end when the last process of the command closes them. */
	close(0);
	close(1);
	close(2);
	watch(command, signals);
}
