import { readFileSync } from "node:fs";
import { chmod, copyFile, mkdir, symlink } from "node:fs/promises";
import { join } from "node:path";
import type { Cgroup } from "../../../src/cgroup/cgroup.ts";
import { homePaths, type LaunchedVmm, launchVmm } from "../../../src/vm/jail/jailed-vmm.ts";
import type { JailOptions } from "../../../src/vm/jail/launch.ts";
import { builtAssets, UID_BASE } from "./vm.ts";

/** Options of the launcher for a program that stands in for a monitor: busybox, alone in its root. */
export async function busyboxJail(parent: string, change: Partial<JailOptions> = {}): Promise<JailOptions> {
  const directory = join(parent, `jail-${Math.random().toString(36).slice(2)}`);
  const root = join(directory, "root");
  for (const name of ["vm", "proc", "dev", "bin"]) await mkdir(join(root, name), { recursive: true });
  await mkdir(join(directory, "own"));
  await copyFile("/bin/busybox", join(root, "bin/busybox"));
  for (const path of [root, join(root, "bin/busybox")]) await chmod(path, 0o755);
  return {
    launcher: builtAssets().launcher,
    root,
    directory: join(directory, "own"),
    uid: UID_BASE + 5000,
    cgroups: [],
    devices: [],
    fileBytesMax: 1000,
    extraFds: [],
    program: ["/bin/busybox", "true"],
    ...change,
  };
}

/** A launcher with a shell script in place of the monitor, in a directory as machines have it. */
export interface LaunchedScript extends LaunchedVmm {
  /** file of the launcher's report */
  readonly report: string;
}

/** Launches a shell script as monitors are; `stack` ends it. Every command of busybox is in /bin. */
export async function launchScript(
  stack: AsyncDisposableStack,
  parent: string,
  script: string,
  cgroup: Pick<Cgroup, "directories"> = { directories: [] },
): Promise<LaunchedScript> {
  const { root, uid, directory } = await busyboxJail(parent);
  for (const name of ["sh", "sleep", "yes", "head", "ls", "cat", "printf"]) {
    await symlink("busybox", join(root, "bin", name));
  }
  const home = join(directory, "..", "home");
  const paths = homePaths(home);
  await mkdir(paths.directory, { recursive: true });
  const process = launchVmm(
    stack,
    builtAssets(),
    { id: "script", uid, home, directory: paths.directory, cgroup: cgroup as Cgroup },
    {
      root,
      devices: [],
      fileBytesMax: 1_000_000,
      extraFds: [],
      environment: { PATH: "/bin" },
      program: ["/bin/busybox", "sh", "-c", script],
    },
  );
  return { ...process, report: paths.report };
}

/** The only child of a launcher; null while it has none. */
export function childOf(launcher: number): number | null {
  const [pid] = readFileSync(`/proc/${launcher}/task/${launcher}/children`, "utf8").split(" ").map(Number);
  return pid === undefined || pid === 0 ? null : pid;
}
