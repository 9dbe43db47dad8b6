import { closeSync, existsSync, openSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, rmdir, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { until } from "../waiting.ts";

const SCRIPT = resolve(import.meta.dir, "booted-system.sh");
const CGROUPS = "/sys/fs/cgroup";
/** Trees of control groups that systemd uses; only one on hosts with version 2 alone. */
const TREES = ["systemd", "memory", "cpu", "cpuacct", "pids", "unified"];
/** The system is ended after this time, in `seconds`. */
const LIFE_SECONDS_MAX = 280;
const COMMAND_MS_MAX = 150_000;

export interface CommandResult {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

/** A container in which systemd runs as the first process, as on a machine of its own. */
export class BootedSystem implements AsyncDisposable {
  readonly directory: string;
  readonly #groups: readonly string[];
  readonly #child: Bun.Subprocess;
  #pid = 0;

  private constructor(directory: string, groups: readonly string[], child: Bun.Subprocess) {
    this.directory = directory;
    this.#groups = groups;
    this.#child = child;
  }

  static async boot(): Promise<BootedSystem> {
    const directory = await mkdtemp(join(tmpdir(), "coppice-booted-"));
    for (const name of ["root", "data"]) await mkdir(join(directory, name));
    const name = `coppice-test-${process.pid}`;
    const trees = existsSync(join(CGROUPS, "cgroup.controllers")) ? [""] : TREES;
    const groups = trees.map((tree) => join(CGROUPS, tree, name));
    for (const group of groups) await mkdir(group, { recursive: true });
    const join_ = groups.map((group) => `echo $$ >${group}/cgroup.procs`).join("; ");
    const unshare = [
      "unshare",
      "-m",
      "-p",
      "-i",
      "-u",
      "-n",
      "-C",
      "-f",
      "--kill-child=KILL",
      "bash",
      SCRIPT,
      directory,
    ];
    const command = `${join_}; exec timeout -k 5 ${LIFE_SECONDS_MAX} ${unshare.join(" ")}`;
    const log = openSync(join(directory, "log"), "w");
    const child = Bun.spawn(["bash", "-c", command], { stdin: "ignore", stdout: log, stderr: log, detached: true });
    closeSync(log);
    const system = new BootedSystem(directory, groups, child);
    try {
      await until("systemd is the first process", async () => (await system.#findFirst()) !== 0, 20_000);
      await until("the system is up", () => system.isUp(), 40_000);
      return system;
    } catch (error) {
      const said = await readFile(join(directory, "log"), "utf8");
      await system[Symbol.asyncDispose]();
      throw new Error(`no system came up: ${said.slice(-2000)}`, { cause: error });
    }
  }

  /** Path of a file of the system, as seen from outside. */
  path(inside: string): string {
    return `/proc/${this.#pid}/root${inside}`;
  }

  /** Prefix of a command that runs only in the system's network. */
  get networkPrefix(): string[] {
    return ["nsenter", "-t", String(this.#pid), "-n"];
  }

  async run(...argv: string[]): Promise<CommandResult> {
    const enter = ["nsenter", "-t", String(this.#pid), "-m", "-p", "-i", "-u", "-n", "-C", "-r", "-w"];
    const child = Bun.spawn([...enter, ...argv], {
      env: { PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", HOME: "/root", LANG: "C" },
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
      timeout: COMMAND_MS_MAX,
    });
    const [stdout, stderr] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
    return { code: await child.exited, stdout, stderr };
  }

  /** Standard output of a command that must succeed. */
  async output(...argv: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.run(...argv);
    if (code !== 0) throw new Error(`${argv.join(" ")} failed with ${code}: ${stderr}${stdout}`);
    return stdout.trimEnd();
  }

  /** A property of the service, from systemd. */
  async property(name: string): Promise<string> {
    return await this.output("systemctl", "show", "coppice", "--value", "-p", name);
  }

  /** Adds a default route to the system that leads nowhere, so that its packets can be counted. */
  async addUplink(): Promise<void> {
    const script = [
      "ip link add uplink type veth peer name nowhere",
      "sysctl -qw net.ipv6.conf.uplink.disable_ipv6=1 net.ipv6.conf.nowhere.disable_ipv6=1",
      "ip address add 192.0.2.2/24 dev uplink",
      "ip link set nowhere up",
      "ip link set uplink arp off up",
      "ip route add default via 192.0.2.1",
    ];
    await this.output("sh", "-ec", script.join("\n"));
  }

  /** Number of packets on that route. */
  async sentPackets(): Promise<number> {
    return Number(await this.output("cat", "/sys/class/net/uplink/statistics/tx_packets"));
  }

  /** Shuts the system down, as a host is before it is switched off, and waits for its end. Its data directory stays. */
  async powerOff(): Promise<void> {
    await this.run("systemctl", "poweroff", "--no-block");
    await this.#child.exited;
    this.#pid = 0;
  }

  /** /var/lib/coppice of the system, also after its end. */
  get dataDirectory(): string {
    return join(this.directory, "data");
  }

  async isUp(): Promise<boolean> {
    const { stdout } = await this.run("systemctl", "is-system-running");
    return ["running", "degraded"].includes(stdout.trim());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // All processes of a pid namespace die with its first one.
    if (this.#pid !== 0) process.kill(this.#pid, "SIGKILL");
    this.#child.kill("SIGKILL");
    await this.#child.exited;
    for (const group of this.#groups) await removeGroups(group);
    await rm(this.directory, { recursive: true, force: true });
  }

  async #findFirst(): Promise<number> {
    const group = this.#groups[0] ?? "";
    // It moves itself to a group of its own early.
    this.#pid = (await firstIn(join(group, "init.scope"))) || (await firstIn(group));
    return this.#pid;
  }
}

/** Pid of the systemd in a group that is the first process of its namespace; 0 without one. */
async function firstIn(group: string): Promise<number> {
  // Group and process may appear and disappear at any time.
  const pids = await readFile(join(group, "cgroup.procs"), "utf8").catch(() => "");
  for (const pid of pids.trim().split("\n")) {
    const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
    // The last of its pids in nested namespaces is its own.
    if (/^NSpid:\t.*\t1$/m.test(status) && /^Name:\tsystemd$/m.test(status)) return Number(pid);
  }
  return 0;
}

/** Groups are empty soon after their processes are killed. */
async function removeGroups(group: string): Promise<void> {
  const entries = await readdir(group, { withFileTypes: true }).catch(() => []);
  for (const entry of entries) if (entry.isDirectory()) await removeGroups(join(group, entry.name));
  await until(`${group} is removed`, async () => {
    await writeFile(join(group, "cgroup.kill"), "1").catch(() => undefined);
    return await rmdir(group).then(
      () => true,
      (error: NodeJS.ErrnoException) => error.code === "ENOENT",
    );
  });
}
