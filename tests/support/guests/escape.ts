import { unlinkSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { constants } from "node:os";
import { join } from "node:path";
import { run, start } from "../../../src/system/exec.ts";

const ROOT = join(import.meta.dir, "../../..");
const COMPILE_MS = 60_000;

/** The result of each attempt, by name: "done", or the name of the kernel's error. */
export type Outcomes = Readonly<Record<string, string>>;

/** Calls that both jails answer as if the kernel did not support them. */
const UNKNOWN_CALLS = [
  ...["mount proc", "mount cgroup2", "mount cgroup", "mount tmpfs", "bind", "remount", "umount", "fsopen", "fspick"],
  ...["open_tree", "move_mount", "mount_setattr", "pivot_root", "chroot"],
  ...["setns", "unshare user", "unshare mnt", "clone user", "clone mnt", "clone3"],
  ...["pidfd_getfd", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp"],
  ...["keyctl", "add_key", "request_key", "bpf", "perf_event_open", "io_uring", "userfaultfd", "fanotify_init"],
  ...["init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "name_to_handle_at"],
  ...["open_by_handle_at", "quotactl", "swapon", "swapoff", "reboot", "acct", "settimeofday", "clock_settime"],
  ...["sethostname", "syslog", "iopl", "shmget", "mq_open", "x32", "i386"],
] as const;

/** The result of every attempt in both jails, except those with a device. */
export const JAILED: Outcomes = {
  ...Object.fromEntries(UNKNOWN_CALLS.map((name) => [name, "ENOSYS"])),
  ...Object.fromEntries(
    ["VSOCK", "NETLINK", "PACKET", "ALG", "BLUETOOTH"].map((kind) => [`AF_${kind}`, "EAFNOSUPPORT"]),
  ),
  AF_UNIX: "done",
  listen: "done",
  "listen by a name": "done",
  "listen in place of another": "done",
  fork: "done",
  signal: "ESRCH",
  pidfd_open: "ESRCH",
  ioctl: "EPERM",
  "the host's loopback": "ENETUNREACH",
  "an abstract name": "ECONNREFUSED",
  "write /proc/sys/kernel/core_pattern": "ENOENT",
  "write /proc/sys/kernel/modprobe": "ENOENT",
  "write /proc/sysrq-trigger": "ENOENT",
  "write /proc/self/oom_score_adj": "EROFS",
  "write /proc/self/mem": "EROFS",
  "write /proc/1/mem": "EROFS",
  "write /proc/self/attr/current": "EROFS",
  "write /proc/self/uid_map": "EROFS",
  "read /proc/kcore": "ENOENT",
  "read /proc/kallsyms": "ENOENT",
  "see /sys": "ENOENT",
  "a directory that is open": "ENOENT",
  "a file of the host": "ENOENT",
  "the same by /proc": "ENOENT",
  "the same by climbing": "ENOENT",
  "the same by another root": "ENOENT",
  "give room back": "done",
};

/** Disk space that a program allocates without writes. */
export const ALLOCATIONS = ["allocate", "allocate beyond the end", "allocate zeros"];

/** Compiles `escape.c` to a static program in the directory, and returns its path. */
export async function compileEscape(directory: string): Promise<string> {
  const program = join(directory, "escape");
  const source = join(ROOT, "tests/support/guests/escape.c");
  // musl-gcc has no kernel headers.
  const headers = ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];
  const argv = ["musl-gcc", "-static", "-s", "-O1", "-Wall", "-Wextra", "-Werror", ...headers, "-o", program, source];
  await run({ argv, timeoutMs: COMPILE_MS });
  return program;
}

/**
 * A command that starts a program in a directory mounted without execution, as the tools' directories are.
 * @returns a command line for a jail that contains the host's programs
 */
export function fromMemory(program: string, args: readonly string[]): string[] {
  const memfdCreate = 319;
  const load = [
    "my $program = shift; local $/; open(my $in, '<:raw', $program) or die $!; my $code = <$in>;",
    `my $name = "escape"; my $fd = syscall(${memfdCreate}, $name, 0); die $! if $fd < 0;`,
    "open(my $out, '>&=', $fd) or die $!; binmode $out; print $out $code; $out->flush;",
    `exec { "/proc/self/fd/$fd" } "escape", @ARGV; die $!;`,
  ].join(" ");
  return ["perl", "-e", load, program, ...args];
}

export function parseOutcomes(text: string): Outcomes {
  const names = new Map(Object.entries(constants.errno).map(([name, number]) => [number, name]));
  const lines = text.split("\n").filter((line) => line !== "");
  return Object.fromEntries(
    lines.map((line) => {
      const [, name = line, number = ""] = /^(.*) (\d+)$/.exec(line) ?? [];
      return [name, number === "0" ? "done" : (names.get(Number(number)) ?? `error ${number}`)];
    }),
  );
}

/** Files outside of a jail that an escape would reach. Disposal removes them. */
export interface Outside extends AsyncDisposable {
  /** arguments of `escape.c` for a jail in which `directory` is writable */
  args(directory: string): string[];
}

/** @param directory that no jail contains */
export async function openOutside(directory: string): Promise<Outside> {
  await mkdir(directory, { recursive: true });
  const canary = join(directory, "canary");
  await writeFile(canary, "canary");
  const abstract = `coppice-escape-${process.pid}-${Date.now()}`;
  const handlers = { data: () => undefined };
  const stack = new DisposableStack();
  const loopback = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: handlers });
  stack.defer(() => loopback.stop(true));
  const named = Bun.listen({ unix: `\0${abstract}`, socket: handlers });
  stack.defer(() => named.stop(true));
  stack.defer(() => unlinkSync(canary));
  const neighbour = start({ argv: ["sleep", "600"], extraFds: [], stderr: "ignore" });
  stack.defer(() => neighbour.kill("SIGKILL"));
  return {
    args: (own) => [own, `${neighbour.pid}`, `${loopback.port}`, abstract, canary],
    [Symbol.asyncDispose]: async () => {
      stack.dispose();
      await neighbour.exited;
    },
  };
}
