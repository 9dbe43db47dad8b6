import { rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Cgroup } from "../../cgroup/cgroup.ts";
import type { ExitStatus } from "../../system/exec.ts";
import { monitorExit } from "../machine-end.ts";
import type { MachineExit, MachineRecord } from "../vmm.ts";
import { type ExitReport, readExitReport } from "./exit-report.ts";
import { homePaths, type VmmHost } from "./jailed-vmm.ts";
import { printable } from "./machine-files.ts";
import type { VmmProcess } from "./machine-process.ts";
import { isKernelThread, processIdentity, readProcessFile } from "./processes.ts";
import type { UidLease } from "./uid-pool.ts";

/** Longest wait for the launcher of a VMM that has ended by itself, in `milliseconds`: it writes its report. */
const REPORT_MS_MAX = 2000;
const POLL_MS = 10;
/** The status of a VMM whose launcher was killed as well, so that there is no report. */
const KILLED: ExitStatus = { code: null, signal: "SIGKILL" };

/**
 * Why a recorded machine cannot be opened; null when its processes, its control group and its root are as recorded.
 * @param cgroup the machine's control group
 */
async function recordProblem(
  { uid, launcher, monitor, root }: MachineRecord,
  cgroup: Pick<Cgroup, "pids">,
): Promise<string | null> {
  for (const [name, recorded] of [["launcher", launcher] as const, ["monitor", monitor] as const]) {
    const { pid, startTicks } = recorded;
    if (processIdentity(pid)?.startTicks !== startTicks) return `the machine's ${name} has ended`;
    const uids = /^Uid:\t(.*)$/m.exec(readProcessFile(pid, "status") ?? "")?.[1]?.split("\t") ?? [];
    if (uids.length !== 4 || uids.some((id) => id !== String(uid))) return `the machine's ${name} has another user`;
  }
  const pids = new Set((await cgroup.pids()).filter((pid) => !isKernelThread(pid)));
  const recorded = new Set([launcher.pid, monitor.pid]);
  const isExact = recorded.size === 2 && pids.symmetricDifference(recorded).size === 0;
  if (!isExact) return "the machine's control group has other processes than recorded";
  if (!(await exists(root))) return "the root directory of the machine's monitor is gone";
  return null;
}

/**
 * The processes of a machine that another process started. The kernel reports their end to no one but their parent, so the
 * owner of the monitor's stream calls `closed` when that ends. Signals go to the control group: nothing else is in it.
 */
export class ExistingVmm implements VmmProcess {
  readonly pid: number;
  readonly exited: Promise<ExitStatus>;
  readonly #cgroup: Cgroup;
  readonly #ending = Promise.withResolvers<"closed" | "killed">();
  #report: ExitReport | null = null;

  /** @param reportPath file of the launcher's report */
  constructor({ pid, cgroup, reportPath }: { pid: number; cgroup: Cgroup; reportPath: string }) {
    this.pid = pid;
    this.#cgroup = cgroup;
    this.exited = this.#end(reportPath);
  }

  /** To be called when the monitor's stream has ended: the VMM has ended, or can no longer be used. */
  closed(): void {
    this.#ending.resolve("closed");
  }

  kill(): void {
    this.#ending.resolve("killed");
  }

  stderrTail(): string {
    return this.#report?.stderr ?? "";
  }

  async #end(reportPath: string): Promise<ExitStatus> {
    const deadline = (await this.#ending.promise) === "closed" ? performance.now() + REPORT_MS_MAX : 0;
    while (performance.now() < deadline && (await this.#cgroup.pids()).length > 0) await Bun.sleep(POLL_MS);
    // A process that does not end in time is waited for, as for a child.
    while (!(await this.#isEmptied())) await Bun.sleep(POLL_MS);
    this.#report = await readExitReport(reportPath);
    return this.#report?.status ?? KILLED;
  }

  async #isEmptied(): Promise<boolean> {
    return await this.#cgroup.kill().then(
      () => true,
      () => false,
    );
  }
}

/** The parts of the host that a machine needs which another process started. */
export type ExistingHost = Pick<VmmHost, "vmsDirectory" | "cgroups"> & {
  /** @see UidPool.reserve */
  readonly uids: { reserve(uid: number): UidLease };
  readonly heldRoots: NonNullable<VmmHost["heldRoots"]>;
};

/** Takes the user id, the directory, the control group, the root and the processes of a machine; `stack` gives them back. */
export function openExistingHome(stack: AsyncDisposableStack, host: ExistingHost, record: MachineRecord) {
  const { id, uid, launcher } = record;
  const home = join(host.vmsDirectory, id);
  const { directory, report } = homePaths(home);
  const { path: root } = stack.use(host.heldRoots.hold(record.root));
  const lease = stack.use(host.uids.reserve(uid));
  stack.defer(() => rm(home, { recursive: true, force: true }));
  const cgroup = stack.use(host.cgroups.open(id));
  lease.usedBy(cgroup);
  const process = new ExistingVmm({ pid: launcher.pid, cgroup, reportPath: report });
  return { home, directory, root, cgroup, process };
}

/**
 * How a machine ended while no process watched it; null when its launcher has not reported that.
 * @param program name of the VMM, for reports
 */
export async function unwatchedExit(program: string, home: string): Promise<MachineExit | null> {
  const report = await readExitReport(homePaths(home).report);
  return report === null ? null : monitorExit(program, report.status, printable(report.stderr));
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}

export { recordProblem };
