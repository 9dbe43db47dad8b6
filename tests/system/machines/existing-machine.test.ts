import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync, statSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { recordProblem } from "../../../src/vm/jail/existing-vmm.ts";
import { readExitReport } from "../../../src/vm/jail/exit-report.ts";
import { homePaths } from "../../../src/vm/jail/jailed-vmm.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { HeldRoots } from "../../../src/vm/jail/vmm-roots.ts";
import { openQemuMachine } from "../../../src/vm/qemu/existing.ts";
import { Qmp } from "../../../src/vm/qemu/qmp.ts";
import { connectToQemu } from "../../../src/vm/qemu/sockets.ts";
import type { MachineRecord } from "../../../src/vm/vmm.ts";
import { failureOf } from "../../support/failures.ts";
import { builtAssets, UID_BASE } from "../../support/guests/vm.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(120_000);

const namespace = `coppice-test-${process.pid}-left`;
let directory: string;
let host: Parameters<typeof openQemuMachine>[0] & { readonly uids: UidPool };
beforeAll(async () => {
  directory = await mkdtemp("/tmp/coppice-left-");
  host = {
    vmsDirectory: join(directory, "vms"),
    cgroups: await openCgroupTree({ namespace }),
    uids: new UidPool(UID_BASE + 2000, 10),
    assets: builtAssets(),
    heldRoots: new HeldRoots(),
  };
});
afterAll(async () => {
  for (const name of await host.cgroups.list()) await host.cgroups.open(name)[Symbol.asyncDispose]();
  await host.cgroups[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

/** A machine that a daemon started, which was killed since. */
async function leftMachine(tie: "outlive" | "copying" = "outlive"): Promise<MachineRecord> {
  const program = join(import.meta.dir, "../../support/appliance/vm-daemon.ts");
  const argv = [process.execPath, program, directory, namespace, tie];
  const daemon = Bun.spawn(argv, { stdout: "pipe", stderr: "inherit" });
  const { value } = await daemon.stdout.getReader().read();
  daemon.kill("SIGKILL");
  await daemon.exited;
  return JSON.parse(Buffer.from(value ?? new Uint8Array()).toString("utf8"));
}

/** Talks to the monitor while no daemon does. */
async function withMonitor<T>({ id }: MachineRecord, work: (qmp: Qmp) => Promise<T>): Promise<T> {
  await using channel = await connectToQemu(join(host.vmsDirectory, id), "monitor");
  return await work(await Qmp.open(channel));
}

const problemOf = (record: MachineRecord) => recordProblem(record, host.cgroups.open(record.id));

/** Everything of the machines is gone. */
async function expectNothingLeft(): Promise<void> {
  expect(await host.cgroups.list()).toEqual([]);
  expect(readdirSync(host.vmsDirectory)).toEqual([]);
  await (await host.uids.acquire())[Symbol.asyncDispose]();
}

test("a machine lives on when its daemon is killed, and another process uses it", async () => {
  const record = await leftMachine();
  expect(await problemOf(record)).toBeNull();
  expect(record.disks).toEqual([{ serial: "S", node: "disk0" }]);
  {
    await using machine = await openQemuMachine(host, record);
    expect(machine.record()).toEqual(record);
    expect(await machine.failure()).toBeNull();
    // QEMU opens the disk in its own mounts, which depend on its root.
    const path = join(machine.directory, "L00");
    await writeFile(path, new Uint8Array(1_048_576));
    await machine.attach([{ serial: "L00", path, readOnly: false }]);
    expect(machine.record()).toMatchObject({ nextLun: 2, disks: [{ serial: "S" }, { serial: "L00", node: "disk1" }] });
    await machine.pause();
    await machine.resume();
    const isConnected = async () => {
      const ports = (await machine.qmp.execute("query-chardev")) as { label: string; filename: string }[];
      return ports.some(({ label, filename }) => label === "agent" && !filename.startsWith("disconnected"));
    };
    await until("QEMU has accepted", isConnected);
    await machine.reconnect();
    await until("QEMU has accepted the next", isConnected);
    process.kill(machine.pid, "SIGKILL");
    expect(await machine.exited).toEqual({
      reason: "vmm_died",
      detail: "QEMU was killed by signal 9",
      monitor: "QEMU, killed by signal 9",
      by: "signal",
    });
  }
  await expectNothingLeft();
});

test("the sockets are for root alone, and not in the jail", async () => {
  const record = await leftMachine();
  await using machine = await openQemuMachine(host, record);
  const { sockets } = homePaths(machine.home);
  const mode = ({ mode, uid, gid }: { mode: number; uid: number; gid: number }) => [mode & 0o777, uid, gid];
  expect(mode(statSync(sockets))).toEqual([0o700, 0, 0]);
  expect(mode(statSync(machine.home))).toEqual([0o700, 0, 0]);
  expect(readdirSync(sockets).sort()).toEqual(["agent.sock", "monitor.sock"]);
  expect(readdirSync(`/proc/${machine.pid}/root/vm`)).toEqual(["S"]);
});

test("a paused machine continues, and the copy of a disk that was being made is cancelled", async () => {
  const record = await leftMachine("copying");
  expect(record.copiesCount).toBe(1);
  await withMonitor(record, async (qmp) => {
    expect(await qmp.execute("query-block-jobs")).toMatchObject([{ device: "copy1" }]);
    await qmp.execute("stop");
  });
  await using machine = await openQemuMachine(host, record);
  expect(await machine.qmp.execute("query-status")).toMatchObject({ status: "running" });
  expect(await machine.qmp.execute("query-block-jobs")).toEqual([]);
  expect(readdirSync(machine.directory)).toEqual(["S"]);
  await rm(join(directory, "copy"), { force: true });
  // Another copy has another name, and works.
  const path = join(directory, "another");
  await using copy = await machine.copyDisk({
    serial: "S",
    path,
    pauseMsMax: 60_000,
    signal: new AbortController().signal,
  });
  await copy.finish();
  expect(machine.record().copiesCount).toBe(2);
  await rm(path);
});

test("a machine whose guest ended meanwhile is ended with that reason", async () => {
  const record = await leftMachine();
  await withMonitor(record, async (qmp) => {
    await qmp.execute("system_reset");
    const isOff = async () => ((await qmp.execute("query-status")) as { status: string }).status === "shutdown";
    await until("the guest is off", isOff);
  });
  const error = await failureOf(openQemuMachine(host, record));
  expect(error).toMatchObject({ name: "MachineEndedError", exit: { reason: "guest_shutdown" } });
  await expectNothingLeft();
});

test("a machine with other disks than recorded is ended", async () => {
  const record = await leftMachine();
  const error = await failureOf(openQemuMachine(host, { ...record, disks: [] }));
  expect(error).toMatchObject({ name: "VmmError", message: "the machine has other disks than recorded" });
  await expectNothingLeft();
});

test("a machine that ended meanwhile has left its reason", async () => {
  const record = await leftMachine();
  process.kill(record.monitor.pid, "SIGTERM");
  await until("it has ended", async () => (await problemOf(record)) !== null);
  const { report } = homePaths(join(host.vmsDirectory, record.id));
  await until("it is reported", async () => (await readExitReport(report)) !== null);
  expect(await readExitReport(report)).toMatchObject({ status: { code: 0, signal: null } });
  expect((await readExitReport(report))?.stderr).toContain("terminating on signal 15");
  const error = await failureOf(openQemuMachine(host, record));
  expect(error).toMatchObject({ name: "MachineEndedError", exit: { reason: "vmm_died", by: "signal" } });
  expect(existsSync(report)).toBe(false);
  await expectNothingLeft();
});
