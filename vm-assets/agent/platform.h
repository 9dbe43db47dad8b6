/*
 * Functions that the PID 1 of a virtual machine can perform, and a test on the build machine must not. guest/ implements
 * them for the guest, native/ for the sanitizer build, in which directories replace the disks.
 */
#ifndef COPPICE_PLATFORM_H
#define COPPICE_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "network/packets.h"
#include "problem.h"
#include "transport.h"

struct usage {
	uint64_t cpu_us;
	uint64_t user_us;
	uint64_t system_us;
	uint64_t peak_bytes;
	bool oom_killed;
};

/* Boots the machine up to the transport. Does not return on failure. */
void platform_start(int argc, char **argv, struct transport *transport);
/* Completes the boot after HELLO was queued: late modules, cgroups, priority. */
void platform_ready(void);
/* Writes a line to the machine's own log. */
void platform_log(const char *text);
/* Ends the machine. status: 0 when the host closed the stream, otherwise the error was logged. */
_Noreturn void platform_end(int status);

bool platform_set_clock(uint64_t realtime_ns, struct problem *problem);
bool platform_reseed(const uint8_t *entropy, size_t size, struct problem *problem);

/* Mounts: only the layers; also the scratch and the overlay of all; the layers and the scratch without an overlay. */
enum mounts { MOUNTS_LAYERS, MOUNTS_ROOT, MOUNTS_BARE };

/* The layers are at <prefix>/l/NN, the scratch at <prefix>/s, the merged root at <prefix>/r. */
const char *platform_prefix(void);
bool platform_mount(unsigned layers, enum mounts mounts, struct problem *problem);
bool platform_freeze(uint64_t *trimmed_bytes, struct problem *problem);
/* Writes cached data to the scratch. */
bool platform_flush(struct problem *problem);
/* Stops all writes to the scratch. Returns when no write is under way. */
bool platform_quiesce(struct problem *problem);
bool platform_thaw(struct problem *problem);
/* Opens the disk of a mounted layer for reading; -1 on failure. */
int platform_open_layer(unsigned layer);
/* Unmounts everything after a freeze or a mount of layers alone, and removes the disks from the kernel. */
bool platform_release_disks(unsigned layers, bool scratch, struct problem *problem);

/*
 * Forks the reaper of a session into a cgroup of its own and, if `isolated`, into namespaces of its own. Returns 0 in the
 * child, and -1 with a problem on failure.
 */
pid_t platform_fork_reaper(unsigned slot, bool isolated, struct problem *problem);
/* In an isolated reaper: sets the hostname, mounts /proc, and enters the merged root. */
bool platform_enter_root(const char *hostname, struct problem *problem);
/* In other reapers: joins the namespaces of the reaper of `pidfd`, also for the command that will be forked. */
bool platform_join(int pidfd, struct problem *problem);
/* Forks a process that works on the files of commands, in the cgroup of all of these. Returns as platform_fork_reaper. */
pid_t platform_fork_visitor(struct problem *problem);
/* In such a process: enters the mount namespace of the reaper of `pidfd`; `/` is its root. */
bool platform_visit(int pidfd, struct problem *problem);
/* Opens a terminal in the merged root's devpts. Returns the agent's side, non-blocking; -1 with a problem. */
int platform_open_terminal(struct problem *problem);
/* In the process of a command or a visitor that has not left yet: makes it one that the OOM killer may choose. */
void platform_become_ordinary(void);
/* Sends SIGKILL to all processes of a session, including the reaper. */
void platform_kill(unsigned slot, pid_t reaper, pid_t command);
/*
 * Kills the reaper of a session that is not isolated, and nothing else: what its command left behind stays in the namespaces
 * that it joined, and moves to a cgroup that all such processes share.
 */
void platform_leave(unsigned slot, pid_t reaper);
/* True when no process of a session is left. Only sessions that are not isolated can outlive their reaper. */
bool platform_is_empty(unsigned slot);
/* Reads the usage of a session whose processes are dead, and removes its cgroup. */
void platform_release(unsigned slot, struct usage *usage);

/* The guest's network: descriptors that are ready for reading when there is something to do. */
struct network_sockets {
	int held; /* SYNs are held */
	int listener; /* connections that the kernel completed */
	int questions; /* datagrams with questions, IPV6_RECVPKTINFO */
	int question_listener;
	int addresses; /* the guest's own addresses changed; -1: none */
};
/* Sets it up, once, before the machine can be saved. */
bool platform_network_open(struct network_sockets *sockets, struct problem *problem);
/* From now on the agent gets all packets for addresses outside. Before, the kernel has no route to any. */
bool platform_network_reach(struct problem *problem);
/* Takes the next held SYN. Returns false when none waits. Its bytes may be anything. */
bool platform_network_held(uint8_t record[HELD_BYTES]);
/* Sends an IP packet, which no filter holds, to an address. `interface`: of a link-local address. */
void platform_network_send(const uint8_t *packet, size_t size, const uint8_t to[ADDRESS_BYTES], uint32_t interface);
/* Reads changes of the guest's own addresses. */
void platform_network_read_addresses(void);
/* True for an address of the guest itself. Packets for it do not come to the agent. */
bool platform_network_owns(const uint8_t address[ADDRESS_BYTES]);
/* Questions to loopback addresses come to the agent again, until a program binds their port. */
void platform_network_serve_loopback(void);

#endif
