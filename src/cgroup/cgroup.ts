import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { type CgroupFiles, kernelFiles, skippingMissing } from "./cgroup-files.ts";
import { CONTROLLERS, findHierarchies, type Hierarchy } from "./hierarchy.ts";
import { CgroupGoneError, type CgroupStats, parseNumber, readStats } from "./stats.ts";

/** Limits of one VM's cgroup; an absent field means no limit. */
export interface CgroupLimits {
  readonly memoryBytes?: number;
  readonly pids?: number;
  /** 1 to 10000, as in cgroup v2's cpu.weight */
  readonly cpuWeight?: number;
}

/** One cgroup, in every hierarchy of the host. Disposal kills its processes and removes it. */
export interface Cgroup extends AsyncDisposable {
  readonly name: string;
  /** the cgroup's directory in each hierarchy; a process joins by writing to cgroup.procs */
  readonly directories: readonly string[];
  /** @throws CgroupGoneError when the cgroup was removed */
  stats(): Promise<CgroupStats>;
  pids(): Promise<number[]>;
  /** limit of its memory, in `bytes`; null: none, or the host does not offer the controller */
  readonly memoryLimitBytes: number | null;
  /** Sets the share of the processors when there is competition for them: 1 to 10000. */
  setCpuWeight(cpuWeight: number): void;
  /** Sends SIGKILL to every process and waits until none is left. @throws Error when a process does not end */
  kill(): Promise<void>;
}

/** The cgroups of one data directory. Disposal removes their parent if it is empty. */
export interface CgroupTree extends AsyncDisposable {
  readonly version: "v1" | "v2";
  /** controllers of `CONTROLLERS` that the host does not offer; their limits and figures are missing */
  readonly missing: readonly string[];
  /** true: the cgroups are in the unit of the machines, and stay when the service of this process stops */
  readonly isInUnit: boolean;
  /** @throws Error when the cgroup exists or the kernel refuses a limit; nothing is left behind then */
  create(name: string, limits: CgroupLimits): Promise<Cgroup>;
  /** Names of all existing cgroups, including those of dead daemons. */
  list(): Promise<string[]>;
  open(name: string): Cgroup;
}

export interface CgroupTreeOptions {
  /** directory name, unique for a data directory */
  readonly namespace: string;
  /**
   * CPU weight of all cgroups together against the daemon, 1 to 10000; default: the kernel's, 100. Has no effect on v1,
   * where the cgroups are siblings of all others on the host, and the daemon is a small part of those. The machines' unit
   * has a weight of its own.
   */
  readonly cpuWeight?: number;
  /** true: existing cgroups are opened, and no parent of new ones is made before the first */
  readonly opensOnly?: boolean;
  readonly files?: CgroupFiles;
  readonly mountinfo?: string;
  readonly selfCgroup?: string;
  readonly pid?: number;
  readonly killProcess?: (pid: number) => void;
}

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
/** The daemon's own cgroup on v2, where a cgroup with processes cannot delegate controllers to its children. */
const DAEMON = "daemon";
/**
 * The systemd unit whose cgroup has the machines, so that they stay when the service of the daemon stops. It is next to that
 * service, and has one idle process.
 */
const MACHINES_UNIT = "coppice-machines.service";
/** The cgroup of that process on v2, for the same reason. */
const HOLD = "hold";
/** Time limit for killing: a process in an uninterruptible system call survives SIGKILL until the call ends. */
const KILL_TIMEOUT_MS = 20_000;
const POLL_MS_MAX = 16;
/** Limits of the search for cgroups of an earlier daemon that ran in another cgroup of the host. */
const SEARCH_DEPTH_MAX = 5;
const SEARCH_GROUPS_MAX = 5000;
const CPU_SHARES_PER_WEIGHT = 10.24;
const CPU_SHARES_MAX = 262_144;

/**
 * Opens the cgroups of `namespace` in the machines' unit, or below this process's own cgroup where that unit does not run.
 * On v2 the processes of that cgroup first move to a child, so that the cgroup can delegate its controllers.
 * @throws Error when the host has no cgroups
 */
export async function openCgroupTree(options: CgroupTreeOptions): Promise<CgroupTree> {
  checkName(options.namespace);
  const files = skippingMissing(options.files ?? kernelFiles);
  const mountinfo = options.mountinfo ?? readFileSync("/proc/self/mountinfo", "utf8");
  const selfCgroup = options.selfCgroup ?? readFileSync("/proc/self/cgroup", "utf8");
  const hierarchies = findHierarchies(mountinfo, selfCgroup);
  if (hierarchies.length === 0) throw new Error("this host has no control groups mounted");
  const tree = new Tree(files, hierarchies, options);
  if (options.opensOnly !== true) tree.prepare();
  return tree;
}

function checkName(name: string): void {
  if (!NAME.test(name)) throw new Error(`not a name for a control group: ${JSON.stringify(name)}`);
}

function killProcess(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    // ESRCH: the process ended after the list was read.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

class Tree implements CgroupTree {
  readonly version: "v1" | "v2";
  readonly missing: readonly string[];
  readonly isInUnit: boolean;
  readonly #files: CgroupFiles;
  readonly #killProcess: (pid: number) => void;
  readonly #namespace: string;
  /** Parents of new cgroups, one in each hierarchy. */
  readonly #roots: readonly string[];
  /** Parents of cgroups of earlier daemons elsewhere in the hierarchies. */
  readonly #staleRoots: readonly string[];
  readonly #pid: number;
  readonly #cpuWeight: number | null;

  constructor(files: CgroupFiles, hierarchies: readonly Hierarchy[], options: CgroupTreeOptions) {
    const { namespace } = options;
    this.#files = files;
    this.#killProcess = options.killProcess ?? killProcess;
    this.#namespace = namespace;
    this.#pid = options.pid ?? process.pid;
    this.#cpuWeight = options.cpuWeight ?? null;
    this.version = hierarchies.some((hierarchy) => hierarchy.version === "v1") ? "v1" : "v2";
    const parents = hierarchies.map((hierarchy) => this.#machinesUnit(hierarchy) ?? serviceGroup(hierarchy));
    this.#roots = parents.map((parent) => `${parent}/${namespace}`);
    this.isInUnit = parents.some((parent) => basename(parent) === MACHINES_UNIT);
    this.#staleRoots = hierarchies.flatMap((hierarchy) => this.#search(hierarchy.mount));
    const available =
      this.version === "v1" ? hierarchies.flatMap((hierarchy) => hierarchy.controllers) : this.#delegate(parents);
    this.missing = CONTROLLERS.filter((controller) => !available.includes(controller));
  }

  /** v2 accounts processor time without a controller; v1 calls that controller cpuacct. */
  #delegate(groups: readonly string[]): string[] {
    return groups.flatMap((group) => {
      const offered = this.#files.read(`${group}/cgroup.controllers`)?.trim().split(/\s+/) ?? [];
      return [...CONTROLLERS.filter((controller) => offered.includes(controller)), "cpuacct"];
    });
  }

  /** Makes the parents of the cgroups, with their controllers. */
  prepare(): void {
    for (const root of this.#roots) this.#files.mkdir(root);
    if (this.version === "v1") return;
    this.#enableControllers();
    if (this.#cpuWeight !== null) setWeight(this.#files, this.#roots, this.#cpuWeight);
  }

  #enableControllers(): void {
    const group = dirname(this.#roots[0] ?? "");
    const isUnit = basename(group) === MACHINES_UNIT;
    const enabled = CONTROLLERS.filter((name) => name !== "cpuacct" && !this.missing.includes(name));
    const child = `${group}/${isUnit ? HOLD : DAEMON}`;
    this.#files.mkdir(child);
    const moved = isUnit ? this.#pidsOf(group) : [String(this.#pid)];
    for (const pid of moved) this.#files.write(`${child}/cgroup.procs`, pid);
    const enable = enabled.map((controller) => `+${controller}`).join(" ");
    try {
      for (const parent of [group, ...this.#roots]) this.#files.write(`${parent}/cgroup.subtree_control`, enable);
    } catch (error) {
      // EBUSY: other processes share the cgroup (in a login shell, for example), so it cannot delegate controllers.
      if ((error as NodeJS.ErrnoException).code !== "EBUSY") throw error;
      (this as { missing: readonly string[] }).missing = enabled;
    }
  }

  /** The cgroup of the machines' unit; null when it does not run. */
  #machinesUnit(hierarchy: Hierarchy): string | null {
    const group = `${dirname(serviceGroup(hierarchy))}/${MACHINES_UNIT}`;
    return [group, `${group}/${HOLD}`].some((each) => this.#pidsOf(each).length > 0) ? group : null;
  }

  #exists(group: string): boolean {
    return this.#files.read(`${group}/cgroup.procs`) !== null;
  }

  #pidsOf(group: string): string[] {
    return this.#files.read(`${group}/cgroup.procs`)?.split("\n").filter(Boolean) ?? [];
  }

  async create(name: string, limits: CgroupLimits): Promise<Cgroup> {
    checkName(name);
    // The machines' unit was stopped or restarted.
    if (!this.#roots.every((root) => this.#exists(root))) this.prepare();
    if ((await this.list()).includes(name)) throw new Error(`control group ${name} exists`);
    const group = this.open(name);
    try {
      for (const directory of group.directories) this.#files.mkdir(directory);
      this.#limit(group.directories, limits);
    } catch (error) {
      await group[Symbol.asyncDispose]();
      throw new Error(`control group ${name} cannot be made`, { cause: error });
    }
    return group;
  }

  #limit(directories: readonly string[], limits: CgroupLimits): void {
    const set = (file: string, value: number): void => {
      for (const directory of directories) this.#files.write(`${directory}/${file}`, String(value));
    };
    if (limits.memoryBytes !== undefined) {
      set("memory.limit_in_bytes", limits.memoryBytes);
      // The limit of memory and swap together: a VM that swaps would occupy the host's disk.
      set("memory.memsw.limit_in_bytes", limits.memoryBytes);
      set("memory.max", limits.memoryBytes);
      set("memory.swap.max", 0);
    }
    if (limits.pids !== undefined) set("pids.max", limits.pids);
    if (limits.cpuWeight !== undefined) setWeight(this.#files, directories, limits.cpuWeight);
  }

  async list(): Promise<string[]> {
    const names = [...this.#roots, ...this.#staleRoots].flatMap((root) => this.#files.children(root));
    return [...new Set(names)].sort();
  }

  open(name: string): Cgroup {
    checkName(name);
    const current = this.#roots.map((root) => `${root}/${name}`);
    const stale = this.#staleRoots.map((root) => `${root}/${name}`);
    const [isCurrent, isStale] = [current, stale].map((groups) => groups.some((group) => this.#exists(group)));
    // An earlier daemon that ran in another cgroup made it there.
    const [directories, others] = !isCurrent && isStale ? [stale, current] : [current, stale];
    return new Group(this.#files, name, directories, others, this.#killProcess);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const root of [...this.#roots, ...this.#staleRoots]) {
      if (this.#exists(root) && this.#files.children(root).length === 0) this.#files.rmdir(root);
    }
  }

  /** Directories with this namespace elsewhere. The namespace is unique to the data directory, so it owns them. */
  #search(mount: string): string[] {
    const directories: string[] = [];
    let visited = 0;
    let level = [mount];
    for (let depth = 0; depth < SEARCH_DEPTH_MAX && visited < SEARCH_GROUPS_MAX; depth++) {
      const next: string[] = [];
      for (const parent of level) {
        for (const child of this.#files.children(parent)) {
          const path = `${parent}/${child}`;
          visited++;
          if (child !== this.#namespace) next.push(path);
          else if (!this.#roots.includes(path)) directories.push(path);
        }
      }
      level = next;
    }
    return directories;
  }
}

function setWeight(files: CgroupFiles, directories: readonly string[], weight: number): void {
  const shares = Math.min(CPU_SHARES_MAX, Math.max(2, Math.round(weight * CPU_SHARES_PER_WEIGHT)));
  for (const directory of directories) {
    files.write(`${directory}/cpu.shares`, String(shares));
    files.write(`${directory}/cpu.weight`, String(weight));
  }
}

/** The parent of all cgroups of this service: its own cgroup, or the parent of that after an earlier move. */
function serviceGroup(hierarchy: Hierarchy): string {
  const moved = hierarchy.version === "v2" && basename(hierarchy.own) === DAEMON;
  return moved ? dirname(hierarchy.own) : hierarchy.own;
}

class Group implements Cgroup {
  readonly name: string;
  readonly directories: readonly string[];
  readonly #files: CgroupFiles;
  readonly #stale: readonly string[];
  readonly #killProcess: (pid: number) => void;

  constructor(
    files: CgroupFiles,
    name: string,
    directories: readonly string[],
    stale: readonly string[],
    killProcess: (pid: number) => void,
  ) {
    this.#files = files;
    this.name = name;
    this.directories = directories;
    this.#stale = stale;
    this.#killProcess = killProcess;
  }

  async stats(): Promise<CgroupStats> {
    if (this.#first("cgroup.procs") === null) throw new CgroupGoneError(`control group ${this.name} is gone`);
    return readStats((file) => this.#first(file));
  }

  async pids(): Promise<number[]> {
    return this.#pids();
  }

  get memoryLimitBytes(): number | null {
    const limit = parseNumber(this.#first("memory.limit_in_bytes")) ?? parseNumber(this.#first("memory.max"));
    // v1 has a number of pages near 2^63 for no limit.
    return limit !== null && limit < Number.MAX_SAFE_INTEGER ? limit : null;
  }

  setCpuWeight(cpuWeight: number): void {
    setWeight(this.#files, this.directories, cpuWeight);
  }

  async kill(): Promise<void> {
    const deadline = performance.now() + KILL_TIMEOUT_MS;
    for (let waitMs = 1; ; waitMs = Math.min(POLL_MS_MAX, waitMs * 2)) {
      const pids = this.#pids();
      if (pids.length === 0) return;
      if (performance.now() > deadline) throw new Error(`control group ${this.name} keeps ${pids.length} processes`);
      // cgroup.kill also kills processes that fork meanwhile; without it, the next round does.
      for (const directory of this.#all()) this.#files.write(`${directory}/cgroup.kill`, "1");
      for (const pid of pids) this.#killProcess(pid);
      await Bun.sleep(waitMs);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    const deadline = performance.now() + KILL_TIMEOUT_MS;
    for (const directory of this.#all()) {
      // A process that was just reaped keeps its cgroup busy for a moment.
      while (!this.#files.rmdir(directory)) {
        if (performance.now() > deadline) throw new Error(`control group ${directory} stays busy`);
        await Bun.sleep(POLL_MS_MAX);
      }
    }
  }

  #all(): string[] {
    return [...this.directories, ...this.#stale];
  }

  #first(file: string): string | null {
    for (const directory of this.directories) {
      const text = this.#files.read(`${directory}/${file}`);
      if (text !== null) return text;
    }
    return null;
  }

  #pids(): number[] {
    const lines = this.#all().flatMap((directory) => this.#files.read(`${directory}/cgroup.procs`)?.split("\n") ?? []);
    // 0 stands for a process outside this pid namespace; a signal to pid 0 would go to this process's own group.
    return [...new Set(lines.map(Number))].filter((pid) => pid > 0);
  }
}
