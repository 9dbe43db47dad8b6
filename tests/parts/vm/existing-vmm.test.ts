import { afterAll, describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { ExistingVmm, recordProblem } from "../../../src/vm/jail/existing-vmm.ts";
import { isKernelThread, processIdentity } from "../../../src/vm/jail/processes.ts";
import type { MachineRecord, ProcessIdentity } from "../../../src/vm/vmm.ts";
import { childOf, launchScript } from "../../support/guests/busybox-jail.ts";
import { UID_BASE } from "../../support/guests/vm.ts";
import { until } from "../../support/waiting.ts";

/** The parent of the kernel's threads, where the pid namespace shows it. */
const KTHREADD = 2;
const directory = await mkdtemp("/tmp/coppice-existing-");
const cgroups = await openCgroupTree({ namespace: `coppice-test-${process.pid}-existing` });
afterAll(async () => {
  await cgroups[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

/** Launches a script in a control group of its own, and records it. */
async function recorded(stack: AsyncDisposableStack, script: string) {
  const cgroup = stack.use(await cgroups.create(`script-${Math.random().toString(36).slice(2)}`, {}));
  const launched = await launchScript(stack, directory, script, cgroup);
  await until("the program runs", () => childOf(launched.pid) !== null);
  const identity = (pid: number): ProcessIdentity => processIdentity(pid) ?? { pid, startTicks: 0 };
  const [launcher, monitor] = [identity(launched.pid), identity(childOf(launched.pid) ?? 0)];
  const uid = UID_BASE + 5000;
  const record = { uid, launcher, monitor, root: directory } as unknown as MachineRecord;
  return { cgroup, launched, record };
}

describe("a record of a machine", () => {
  test("is refused when one of its processes, its user or its root differs", async () => {
    await using stack = new AsyncDisposableStack();
    const { cgroup, record } = await recorded(stack, "sleep 60");
    const problem = (change: Partial<MachineRecord>) => recordProblem({ ...record, ...change }, cgroup);
    const later = ({ pid, startTicks }: ProcessIdentity) => ({ pid, startTicks: startTicks + 1 });
    await until("the program has its user", async () => (await problem({})) === null);
    expect(await problem({ monitor: later(record.monitor) })).toBe("the machine's monitor has ended");
    expect(await problem({ launcher: later(record.launcher) })).toBe("the machine's launcher has ended");
    expect(await problem({ uid: record.uid + 1 })).toBe("the machine's launcher has another user");
    expect(await problem({ root: "/nowhere" })).toContain("root directory");
  });

  test("is refused when its control group has another process, or not its own", async () => {
    await using stack = new AsyncDisposableStack();
    const { cgroup, record } = await recorded(stack, "sleep 60");
    const { launcher, monitor } = record;
    await until("the program has its user", async () => (await recordProblem(record, cgroup)) === null);
    for (const pids of [[], [launcher.pid], [launcher.pid, monitor.pid, 1], [launcher.pid, 1]]) {
      expect(await recordProblem(record, { pids: () => Promise.resolve(pids) })).toContain("control group");
    }
  });

  test.skipIf(!isKernelThread(KTHREADD))("may have threads of the kernel in its control group, as of KVM", async () => {
    await using stack = new AsyncDisposableStack();
    const { cgroup, record } = await recorded(stack, "sleep 60");
    await until("the program has its user", async () => (await recordProblem(record, cgroup)) === null);
    const pids = async () => [...(await cgroup.pids()), KTHREADD];
    expect(await recordProblem(record, { pids })).toBeNull();
  });

  test("is refused when the machine has ended", async () => {
    await using stack = new AsyncDisposableStack();
    const { cgroup, launched, record } = await recorded(stack, "sleep 60");
    process.kill(record.monitor.pid, "SIGKILL");
    await launched.exited;
    expect(await recordProblem(record, cgroup)).toBe("the machine's launcher has ended");
  });
});

describe("a VMM that another process started", () => {
  test("has ended when its monitor's stream has, with its launcher's report", async () => {
    await using stack = new AsyncDisposableStack();
    const { cgroup, launched } = await recorded(stack, "sleep 0.3; echo no memory >&2; exit 4");
    const existing = new ExistingVmm({ pid: launched.pid, cgroup, reportPath: launched.report });
    existing.closed();
    expect(await existing.exited).toEqual({ code: 4, signal: null });
    expect(existing.stderrTail()).toBe("no memory");
  });

  test("is killed with everything in its control group", async () => {
    await using stack = new AsyncDisposableStack();
    const { cgroup, launched } = await recorded(stack, "sleep 60");
    const existing = new ExistingVmm({ pid: launched.pid, cgroup, reportPath: launched.report });
    existing.kill();
    expect(await existing.exited).toEqual({ code: null, signal: "SIGKILL" });
    expect(await cgroup.pids()).toEqual([]);
  });

  test("is killed when it keeps running without a monitor", async () => {
    await using stack = new AsyncDisposableStack();
    const { cgroup, launched } = await recorded(stack, "sleep 60");
    const existing = new ExistingVmm({ pid: launched.pid, cgroup, reportPath: launched.report });
    existing.closed();
    expect(await existing.exited).toEqual({ code: null, signal: "SIGKILL" });
    expect(await cgroup.pids()).toEqual([]);
  });
});

test("a process that was not reaped has ended", async () => {
  await using stack = new AsyncDisposableStack();
  const program = "sleep 0.1 & echo $!; exec tail -f /dev/null";
  const parent = Bun.spawn(["/bin/sh", "-c", program], { stdout: "pipe" });
  stack.defer(async () => {
    parent.kill("SIGKILL");
    await parent.exited;
  });
  const { value } = await parent.stdout.getReader().read();
  const child = Number(Buffer.from(value ?? new Uint8Array()).toString("utf8"));
  expect(processIdentity(parent.pid)?.startTicks).toBeGreaterThan(0);
  expect(isKernelThread(parent.pid)).toBe(false);
  await until("it has ended", () => processIdentity(child) === null);
});
