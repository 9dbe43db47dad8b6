/** Machines of Cloud Hypervisor whose daemon was killed, opened by another process. A stand-in replaces the program. */
import { afterAll, beforeAll, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { Agent } from "../../../../src/vm/agent/agent.ts";
import { CloudHypervisorApi } from "../../../../src/vm/cloud-hypervisor/api.ts";
import { openCloudHypervisorMachine } from "../../../../src/vm/cloud-hypervisor/existing.ts";
import { openExistingMachine, unwatchedExit } from "../../../../src/vm/existing-machine.ts";
import { recordProblem } from "../../../../src/vm/jail/existing-vmm.ts";
import { homePaths } from "../../../../src/vm/jail/jailed-vmm.ts";
import { syncAgent } from "../../../../src/vm/templates.ts";
import type { Machine, MachineRecord } from "../../../../src/vm/vmm.ts";
import { callsOf, StandInHost, violationsOf } from "../../../support/cloud-hypervisor/cloud-hypervisor.ts";
import { failureOf } from "../../../support/failures.ts";
import { until } from "../../../support/waiting.ts";

setDefaultTimeout(60_000);

let host: StandInHost;
beforeAll(async () => {
  host = await StandInHost.open();
});
afterAll(() => host[Symbol.asyncDispose]());
beforeEach(() => host.control({}));

/** A machine that a daemon started, which was killed since. */
async function leftMachine(layers = 1): Promise<MachineRecord> {
  const program = join(import.meta.dir, "../../../support/cloud-hypervisor/left-daemon.ts");
  const argv = [process.execPath, program, host.directory, host.namespace, `${layers}`];
  const daemon = Bun.spawn(argv, { stdout: "pipe", stderr: "inherit" });
  const { value } = await daemon.stdout.getReader().read();
  daemon.kill("SIGKILL");
  await daemon.exited;
  return JSON.parse(Buffer.from(value ?? new Uint8Array()).toString("utf8"));
}

const output = () => readFileSync(join(host.directory, "output"), "utf8");
const problemOf = (record: MachineRecord) => recordProblem(record, host.cgroups.open(record.id));
const calls = (machine: Machine) => callsOf(host.transcript(machine)).filter((call) => call !== "vmm.ping");
const monitorOf = (record: MachineRecord) => new CloudHypervisorApi(join(host.vmsDirectory, record.id, "vm/api.sock"));

async function expectNothingLeft(): Promise<void> {
  expect(await host.cgroups.list()).toEqual([]);
  expect(readdirSync(host.vmsDirectory)).toEqual([]);
}

test("a machine lives on when its daemon is killed, and its command continues without a gap or a double", async () => {
  const record = await leftMachine();
  expect(await problemOf(record)).toBeNull();
  expect(record).toMatchObject({
    vmm: "cloud-hypervisor",
    acceleration: "kvm",
    version: "53.0",
    disks: [
      { serial: "L00", node: "disk-L00" },
      { serial: "S", node: "disk-S" },
    ],
    nextLun: 2,
  });
  const text = { all: output() };
  {
    const opened = await openExistingMachine({ ...host, assets: { memoryCopier: "" } }, record);
    await using machine = opened;
    expect(machine.record?.()).toEqual(record);
    expect(calls(machine).slice(-1)).toEqual(["vm.info"]);
    const { channel, reconnect } = machine;
    if (reconnect === undefined) throw new Error("it cannot be connected to");
    const stream = { channel, reconnect: reconnect.bind(machine) };
    const signal = AbortSignal.timeout(20_000);
    const { agent, sessions } = await Agent.reconnect(stream, { network: null, signal });
    const [report] = sessions;
    if (report === undefined) throw new Error("the command is gone");
    expect([report.spid, report.started, report.finished]).toEqual([1, true, false]);
    const handle = agent.attach(report, {
      onOutput: (_stream, chunk) => {
        text.all += Buffer.from(chunk).toString();
        return undefined;
      },
      logged: { stdout: text.all.length, stderr: 0 },
    });
    agent.proceed();
    await syncAgent(agent);
    const before = text.all.length;
    await until("it counts on", () => text.all.length > before + 100);
    // A stream that is lost within one process is opened again.
    await machine.reconnect?.();
    const next = await Agent.reconnect(
      { channel: machine.channel, reconnect: stream.reconnect },
      { network: null, signal },
    );
    expect(await failureOf(handle.exit)).toBeInstanceOf(Error);
    const again = next.sessions[0];
    if (again === undefined) throw new Error("the command is gone");
    next.agent.attach(again, {
      onOutput: (_stream, chunk) => {
        text.all += Buffer.from(chunk).toString();
        return undefined;
      },
      logged: { stdout: text.all.length, stderr: 0 },
    });
    next.agent.proceed();
    const then = text.all.length;
    await until("it counts on", () => text.all.length > then + 100);
    const lines = text.all.split("\n").slice(0, -1).map(Number);
    expect(lines).toEqual(lines.map((_, index) => index + 1));
    // It can be forked like one of this process.
    const prepared = await machine.prepareFork?.({ scratchPath: join(host.directory, "scratch"), signal });
    await using point = await prepared?.take();
    expect(point?.pausedMs).toBeGreaterThan(0);
    expect(violationsOf(host.transcript(machine))).toEqual([]);
    process.kill(machine.pid, "SIGKILL");
    expect(await machine.exited).toEqual({
      reason: "vmm_died",
      detail: "Cloud Hypervisor was killed by signal 9",
      monitor: "Cloud Hypervisor, killed by signal 9",
      by: "signal",
    });
  }
  await expectNothingLeft();
});

test("a paused machine continues, and what a fork has left is removed", async () => {
  const record = await leftMachine();
  await monitorOf(record).pause();
  mkdirSync(join(host.vmsDirectory, record.id, "vm/fork"));
  await using machine = await openCloudHypervisorMachine(host, record);
  expect(calls(machine).slice(-2)).toEqual(["vm.info", "vm.resume"]);
  expect(await machine.api.info()).toEqual({ state: "Running" });
  expect(readdirSync(machine.directory)).not.toContain("fork");
});

test("a machine with many disks is not asked for its state, which some builds of the program do not survive", async () => {
  host.control({ refusals: true });
  for (const isPaused of [false, true]) {
    const record = await leftMachine(30);
    if (isPaused) await monitorOf(record).pause();
    await using machine = await openCloudHypervisorMachine(host, record);
    expect(calls(machine).slice(-1)).toEqual(["vm.resume"]);
    expect(await machine.api.info()).toEqual({ state: "Running" });
  }
});

test("the events are for root alone, and not in the jail", async () => {
  const record = await leftMachine();
  await using machine = await openCloudHypervisorMachine(host, record);
  const { sockets } = homePaths(machine.home);
  const events = statSync(join(sockets, "events"));
  expect([statSync(sockets).mode & 0o777, statSync(sockets).uid]).toEqual([0o700, 0]);
  expect([events.isFIFO(), events.mode & 0o777, events.uid]).toEqual([true, 0o600, 0]);
  expect(readdirSync(`/proc/${machine.pid}/root/vm`)).not.toContain("events");
});

test.each([
  ["guest", "panic", "guest_panic"],
  ["vm", "rebooting", "guest_reset"],
] as const)("an event that came while no process listened is taken: %s %s", async (source, event, reason) => {
  host.control({ events: [{ after: "vsock.close", source, event }] });
  const record = await leftMachine();
  const error = await failureOf(
    (async () => {
      await using machine = await openCloudHypervisorMachine(host, record);
      throw await machine.exited;
    })(),
  );
  expect((error as { exit?: object }).exit ?? error).toMatchObject({ reason });
  await expectNothingLeft();
});

test("a machine whose guest is off is ended with that reason", async () => {
  const record = await leftMachine();
  await monitorOf(record).shutdown();
  const error = await failureOf(openCloudHypervisorMachine(host, record));
  expect(error).toMatchObject({ name: "MachineEndedError", exit: { reason: "guest_shutdown" } });
  await expectNothingLeft();
});

test("a machine that ended meanwhile has left its reason", async () => {
  const record = await leftMachine();
  process.kill(record.monitor.pid, "SIGKILL");
  await until("it has ended", async () => (await problemOf(record)) !== null);
  const exited = () => unwatchedExit(record, join(host.vmsDirectory, record.id));
  await until("it is reported", async () => (await exited()) !== null);
  expect((await exited())?.detail).toStartWith("Cloud Hypervisor was killed by signal 9");
  const error = await failureOf(openCloudHypervisorMachine(host, record));
  expect(error).toMatchObject({ name: "MachineEndedError", exit: { reason: "vmm_died" } });
  await expectNothingLeft();
});

test("a machine whose monitor does not answer is ended", async () => {
  host.control({ failures: [{ endpoint: "vm.info", how: "500" }] });
  const record = await leftMachine();
  const error = await failureOf(openCloudHypervisorMachine(host, record));
  expect(error).toMatchObject({ name: "CloudHypervisorApiError" });
  await expectNothingLeft();
});
