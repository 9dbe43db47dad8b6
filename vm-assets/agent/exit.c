#include "exit.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "bytes.h"
#include "protocol.h"

#define EXIT_CODE_KILLED (128 + SIGKILL)

static uint32_t exit_code(int status)
{
	return (uint32_t)(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static uint64_t microseconds(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

void exit_write(uint8_t *payload, const struct ending *ending, const struct usage *usage)
{
	const struct rusage *rusage = ending->rusage;
	uint32_t flags = 0;
	int status = ending->status;
	uint32_t code = exit_code(status);
	if (ending->timed_out) {
		flags |= EXIT_FLAG_TIMED_OUT;
		code = EXIT_CODE_KILLED;
		status = SIGKILL;
	}
	if (usage->oom_killed)
		flags |= EXIT_FLAG_OOM_KILLED;
	/* A command that was killed with its reaper has no rusage, so its times are those of its cgroup. */
	uint64_t user_us = ending->exited ? microseconds(rusage->ru_utime) : usage->user_us;
	uint64_t system_us = ending->exited ? microseconds(rusage->ru_stime) : usage->system_us;
	const uint64_t numbers[] = {
		usage->cpu_us, usage->peak_bytes, ending->wall_us,
		(uint32_t)status, /* with a zero above it */
		user_us, system_us, (uint64_t)rusage->ru_maxrss,
		(uint64_t)rusage->ru_minflt, (uint64_t)rusage->ru_majflt,
		(uint64_t)rusage->ru_inblock, (uint64_t)rusage->ru_oublock,
		(uint64_t)rusage->ru_nvcsw, (uint64_t)rusage->ru_nivcsw,
	};
	_Static_assert(4 + 4 + sizeof numbers == EXIT_BYTES, "the payload of EXIT in protocol.ts");
	put_u32(payload, flags);
	put_u32(payload + 4, code);
	memcpy(payload + 8, numbers, sizeof numbers);
}
