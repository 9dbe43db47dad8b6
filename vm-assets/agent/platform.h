/*
 * What a virtual machine's PID 1 can do and a test on the build machine must not: guest/ implements it
 * for the guest, native/ for the sanitizer build, where a directory stands for the disks.
 */
#ifndef COPPICE_PLATFORM_H
#define COPPICE_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "problem.h"
#include "transport.h"

struct usage {
	uint64_t cpu_us;
	uint64_t user_us;
	uint64_t system_us;
	uint64_t peak_bytes;
	bool oom_killed;
};

/* Brings the machine up as far as the transport. Does not return on failure. */
void platform_start(int argc, char **argv, struct transport *transport);
/* The rest, after HELLO is on its way: late modules, cgroups, priority. */
void platform_ready(void);
/* Writes a line to the machine's own log. */
void platform_log(const char *text);
/* Ends the machine: status 0 when the host closed the stream, else an error that was logged. */
_Noreturn void platform_end(int status);

bool platform_set_clock(uint64_t realtime_ns, struct problem *problem);
bool platform_reseed(const uint8_t *entropy, size_t size, struct problem *problem);

/* The layers alone; with the scratch and the overlay of all; with the scratch only. */
enum mounts { MOUNTS_LAYERS, MOUNTS_ROOT, MOUNTS_BARE };

/* Layers are found at <prefix>/l/NN, the scratch at <prefix>/s, the merged root at <prefix>/r. */
const char *platform_prefix(void);
bool platform_mount(unsigned layers, enum mounts mounts, struct problem *problem);
bool platform_freeze(uint64_t *trimmed_bytes, struct problem *problem);
/* Writes out what the scratch holds in memory. */
bool platform_flush(struct problem *problem);
/* Makes every write to the scratch wait; returns once none is under way. */
bool platform_quiesce(struct problem *problem);
bool platform_thaw(struct problem *problem);
/* Opens the disk of a mounted layer for reading; -1 when that cannot be. */
int platform_open_layer(unsigned layer);
/* Unmounts what is mounted after a mount of layers or a freeze, and makes the kernel forget the disks. */
bool platform_release_disks(unsigned layers, bool scratch, struct problem *problem);

/*
 * Forks the reaper of a session into its own cgroup, and into namespaces of its own (`apart`) or those of the agent: 0
 * in the child, -1 with a problem.
 */
pid_t platform_fork_reaper(unsigned slot, bool apart, struct problem *problem);
/* In a reaper that is apart: hostname, /proc, and the merged root as root. */
bool platform_enter_root(const char *hostname, struct problem *problem);
/* In any other: the namespaces of the reaper that `pidfd` is of, for itself and the command that it will fork. */
bool platform_join(int pidfd, struct problem *problem);
/* A new terminal's side of the agent, which does not block, from the devpts of the merged root; -1 with a problem. */
int platform_open_terminal(struct problem *problem);
/* In the command's process: back to an ordinary process, which the OOM killer may choose. */
void platform_become_ordinary(void);
/* SIGKILL to everything of a session, the reaper too. */
void platform_kill(unsigned slot, pid_t reaper, pid_t command);
/* True when no process of a session is left. Only one that is not apart can leave some behind its reaper. */
bool platform_is_empty(unsigned slot);
/* Figures of a session, and the removal of its cgroup; all its processes are dead. */
void platform_release(unsigned slot, struct usage *usage);

#endif
