import { dirname } from "node:path";
import type { CgroupFiles } from "../../../src/cgroup/cgroup-files.ts";

/** A simulated kernel: groups with files, and processes that a kill ends. */
export class FakeKernel implements CgroupFiles {
  readonly files = new Map<string, string>();
  readonly groups = new Set<string>();
  readonly killed: number[] = [];
  readonly busyFor = new Map<string, number>();
  refuse: string | null = null;

  readonly #filesOf: (group: string) => Record<string, string>;

  constructor(groups: readonly string[], filesOf: (group: string) => Record<string, string>) {
    this.#filesOf = filesOf;
    for (const group of groups) this.mkdir(group);
  }

  read(path: string): string | null {
    return this.files.get(path) ?? null;
  }

  write(path: string, text: string): boolean {
    if (!this.files.has(path)) return false;
    if (this.refuse !== null && path.endsWith(this.refuse)) throw Object.assign(new Error("no"), { code: "EBUSY" });
    if (path.endsWith("/cgroup.kill")) this.#empty(dirname(path));
    else this.files.set(path, text);
    return true;
  }

  mkdir(path: string): void {
    if (this.groups.has(path)) return;
    this.groups.add(path);
    if (!this.groups.has(dirname(path)) && path.startsWith("/cg/")) this.mkdir(dirname(path));
    for (const [name, text] of Object.entries(this.#filesOf(path))) this.files.set(`${path}/${name}`, text);
  }

  rmdir(path: string): boolean {
    const busy = this.busyFor.get(path) ?? 0;
    this.busyFor.set(path, busy - 1);
    if (busy > 0 || (this.files.get(`${path}/cgroup.procs`) ?? "") !== "" || this.children(path).length > 0)
      return false;
    this.groups.delete(path);
    for (const file of [...this.files.keys()]) if (dirname(file) === path) this.files.delete(file);
    return true;
  }

  children(path: string): string[] {
    return [...this.groups].flatMap((group) => (dirname(group) === path ? [group.slice(path.length + 1)] : []));
  }

  kill(pid: number): void {
    this.killed.push(pid);
    for (const [file, text] of this.files) {
      if (file.endsWith("/cgroup.procs")) this.files.set(file, text.replace(new RegExp(`^${pid}\n`, "m"), ""));
    }
  }

  #empty(group: string): void {
    for (const pid of this.read(`${group}/cgroup.procs`)?.split("\n") ?? []) if (pid !== "") this.kill(Number(pid));
  }
}

/** The files of a new group, by the tree that it is in. */
export function v1Files(group: string): Record<string, string> {
  const common = { "cgroup.procs": "" };
  if (group.startsWith("/cg/memory")) {
    const limits = { "memory.limit_in_bytes": "max", "memory.memsw.limit_in_bytes": "max" };
    return {
      ...common,
      ...limits,
      "memory.usage_in_bytes": "4096\n",
      "memory.stat": "cache 3000\nshmem 1000\n",
      "memory.max_usage_in_bytes": "8192\n",
    };
  }
  if (group.startsWith("/cg/cpuacct")) return { ...common, "cpuacct.usage": "2500000000\n" };
  if (group.startsWith("/cg/cpu")) return { ...common, "cpu.shares": "1024", "cpu.stat": "nr_periods 0\n" };
  if (group.startsWith("/cg/pids")) return { ...common, "pids.max": "max", "pids.current": "3\n" };
  return { ...common, "cpu.stat": "usage_usec 1\nuser_usec 1\n" };
}

/** The files of a new group. */
export function v2Files(): Record<string, string> {
  return {
    "cgroup.procs": "",
    "cgroup.controllers": "cpuset cpu io memory pids\n",
    "cgroup.subtree_control": "",
    "cgroup.kill": "",
    "cpu.stat": "usage_usec 1234567\nuser_usec 1000000\n",
    "cpu.weight": "100",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.current": "100\n",
    "memory.peak": "200\n",
    "memory.stat": "anon 70\nfile 50\nshmem 20\n",
    "pids.max": "max",
    "pids.current": "2\n",
  };
}
