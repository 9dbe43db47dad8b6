import { expect, test } from "bun:test";
import { constants } from "node:os";
import { ApiError } from "../../../../src/domain/errors.ts";
import type { ProcessSink } from "../../../../src/supervisor/instance/instance-process.ts";
import { RunningInstance } from "../../../../src/supervisor/instance/running-instance.ts";
import type { ReadyMachine } from "../../../../src/supervisor/machines/machine-source.ts";
import type { AgentExecSpec, AgentExit } from "../../../../src/vm/agent/agent.ts";
import { packIntegers, viewOf } from "../../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, Refusal, Stream } from "../../../../src/vm/agent/protocol.ts";
import { monitorExit } from "../../../../src/vm/machine-end.ts";
import type { MachineExit } from "../../../../src/vm/vmm.ts";
import { exitPayload, failure, openAgent, problem, SPEC, text } from "../../../support/guests/agent-script.ts";
import { turns } from "../../../support/waiting.ts";

const unrecorded = (): never => {
  throw new Error("this process is not recorded");
};

const SHAPE = { vcpus: 1, memoryBytes: 1 };
const OK = exitPayload(0);
/** The offset in EXEC_OPEN of the session whose namespaces the process joins. */
const BESIDE_OFFSET = 16;
const never = new AbortController().signal;

const exec = (instance: RunningInstance, spec: AgentExecSpec, sink: ProcessSink) =>
  instance.exec(() => ({ spec, sink }), never);

/** An instance with a scripted guest; the output of its commands is in `heard`. */
async function scripted() {
  const { guest, agent } = openAgent();
  const exited = Promise.withResolvers<MachineExit>();
  let isDisposed = false;
  const ready = {
    machine: { exited: exited.promise, cgroup: { stats: async () => ({ cpuTimeMs: 7 }) } },
    agent,
    isolation: "vm",
    [Symbol.asyncDispose]: async () => {
      isDisposed = true;
    },
  } as unknown as ReadyMachine;
  const take = async () => ready;
  const machines = { take, takeUnpooled: take, launcher: async () => "/launch" };
  const instance = await RunningInstance.take(machines, SHAPE, never);
  const heard: string[] = [];
  const sink = {
    started: (pid: number) => void heard.push(`started ${pid}`),
    output: (stream: string, chunk: Uint8Array) => void heard.push(`${stream} ${Buffer.from(chunk)}`),
    bytes: () => ({ kept: 0, dropped: 0 }),
    record: unrecorded,
    onInput: (bytes: number) => void heard.push(`given ${bytes}`),
    exited: ({ exitCode }: AgentExit) => void heard.push(`exited ${exitCode}`),
  };
  /** Starts the command, and returns its session. */
  const begin = async (of: ProcessSink = sink) => {
    const command = instance.start(SPEC, of);
    const { session } = await guest.frame(HostFrame.execOpen);
    guest.send(AgentFrame.started, session, packIntegers([32, 1]));
    await command.started;
    return { command, session };
  };
  return { guest, instance, heard, sink, begin, end: exited.resolve, isDisposed: () => isDisposed };
}

test("additional processes are numbered, and forgotten when they end", async () => {
  const { guest, instance, heard, sink, begin } = await scripted();
  const { command, session } = await begin();
  expect([instance.hasHad(0), instance.hasHad(1), instance.hasHad(2)]).toEqual([false, true, false]);
  const additional = exec(instance, { ...SPEC, stdin: "open" }, sink);
  const opened = await guest.frame(HostFrame.execOpen, 1);
  expect(viewOf(opened.payload).getUint32(BESIDE_OFFSET, true)).toBe(session);
  guest.send(AgentFrame.started, opened.session, packIntegers([32, 2]));
  await additional.started;
  expect(instance.processes.map(({ spid }) => spid)).toEqual([1, 2]);
  expect(instance.process(2)).toBe(additional);

  additional.signal(15, { group: true });
  expect((await guest.frame(HostFrame.signal)).session).toBe(opened.session);
  guest.send(AgentFrame.window, opened.session, packIntegers([32, Stream.stdin], [32, 100]));
  await additional.input.write(text("typed"), never);
  expect(command.input.isOpen).toBe(false);
  expect(await failure(command.input.write(text("typed"), never))).toMatchObject({ code: "conflict" });
  expect((await guest.frame(HostFrame.stdin)).payload.toString()).toBe("typed");
  guest.send(AgentFrame.output, opened.session, packIntegers([32, Stream.stderr]), text("answered"));
  guest.send(AgentFrame.exit, opened.session, exitPayload(3));
  expect((await additional.exit).exitCode).toBe(3);
  expect(heard).toEqual(["started 1", "started 2", "given 5", "stderr answered", "exited 3"]);
  expect(instance.process(2)).toBeNull();
  expect(instance.hasHad(2)).toBe(true);
  expect(await failure(additional.input.write(text("late"), never))).toMatchObject({ code: "conflict" });
  expect(instance.process(1)).toBe(command);
  expect(exec(instance, SPEC, sink).spid).toBe(3);
});

test("the number of a start that the guest refuses is that of another process", async () => {
  const { guest, instance, sink, begin, end } = await scripted();
  await begin();
  const [first, second, third] = [exec(instance, SPEC, sink), exec(instance, SPEC, sink), exec(instance, SPEC, sink)];
  const opened = [];
  for (const index of [1, 2, 3]) opened.push(await guest.frame(HostFrame.execOpen, index));
  const [one, two, three] = opened.map(({ session }) => session);
  guest.send(AgentFrame.error, one ?? 0, problem(constants.errno.EAGAIN, "64 processes are alive"));
  guest.send(AgentFrame.started, two ?? 0, packIntegers([32, 3]));
  guest.send(AgentFrame.error, three ?? 0, problem(constants.errno.ENOENT, "working directory"));
  for (const { exit } of [first, third]) await failure(exit);
  expect([2, 3, 4].map((spid) => instance.hasHad(spid))).toEqual([false, true, false]);
  expect([instance.process(2), instance.process(3), instance.process(4)]).toEqual([null, second, null]);
  const again = [exec(instance, SPEC, sink), exec(instance, SPEC, sink), exec(instance, SPEC, sink)];
  expect(again.map(({ spid }) => spid)).toEqual([2, 4, 5]);
  // One that has run has used its number, also when its end is not known.
  guest.channel.deliver(null);
  end(monitorExit("QEMU", { code: 137, signal: null }, ""));
  await Promise.allSettled([second, ...again].map(({ exit }) => exit));
  expect([2, 3, 4, 5].map((spid) => instance.hasHad(spid))).toEqual([false, true, false, false]);
});

test("a record has neither the starts nor the connections that were requested during its hold", async () => {
  const { guest, instance, sink, begin } = await scripted();
  const recorded = { ...sink, record: () => ({}) as ReturnType<ProcessSink["record"]> };
  const { session } = await begin(recorded);
  const holding = instance.hold();
  guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold)).session, packIntegers([64, 0n]));
  await holding;
  const late = exec(instance, SPEC, recorded);
  void instance.dial(80).catch(() => undefined);
  await turns();
  const { agent, processes, refused, spidLast } = instance.record();
  expect(agent.processes.map((process) => process.session)).toEqual([session]);
  expect(agent.connections).toEqual([]);
  expect(processes.map(({ spid }) => spid)).toEqual([1]);
  // Another object gives the number to its next process.
  expect([late.spid, spidLast, refused]).toEqual([2, 2, [2]]);
  void instance.agent.sync({ realtimeNs: 1n, entropy: new Uint8Array(32) });
  await guest.frame(HostFrame.execOpen, 1);
  await guest.frame(HostFrame.netDial);
});

test("before and after the command, processes cannot be started and connections cannot be dialled", async () => {
  const { guest, instance, sink, begin } = await scripted();
  const none = { code: "conflict", message: "the command of the instance is not running" };
  expect(() => exec(instance, SPEC, sink)).toThrow(ApiError);
  expect(await failure(instance.dial(80))).toMatchObject(none);
  expect(instance.hasBegun).toBe(false);
  const { command, session } = await begin();
  expect(instance.hasBegun).toBe(true);
  expect(() => instance.start(SPEC, sink)).toThrow("one command");
  guest.send(AgentFrame.exit, session, OK);
  await command.exit;
  expect(instance.hasBegun).toBe(true);
  expect(() => exec(instance, SPEC, sink)).toThrow("is not running");
  expect(await failure(instance.dial(80))).toMatchObject(none);
  expect(guest.frames.filter(({ type }) => type === HostFrame.netDial)).toEqual([]);
});

test("a process that is started while the command ends is refused like a later one", async () => {
  const { guest, instance, sink, begin } = await scripted();
  const { command, session } = await begin();
  const errors = [constants.errno.ESRCH, constants.errno.ECHILD, constants.errno.ENOMEM];
  const starts = errors.map(() => exec(instance, SPEC, sink));
  for (const [index, errno] of errors.entries()) {
    const opened = await guest.frame(HostFrame.execOpen, 1 + index);
    guest.send(AgentFrame.error, opened.session, problem(errno, "of the guest"));
  }
  guest.send(AgentFrame.exit, session, OK);
  await command.exit;
  const none = { code: "conflict", message: "the command of the instance is not running" };
  for (const { started, exit } of starts)
    for (const refused of [started, exit]) expect(await failure(refused)).toMatchObject(none);
  expect(instance.processes).toEqual([]);
});

test("a connection is dialled in the guest, and a refused one is reported", async () => {
  const { guest, instance, begin } = await scripted();
  await begin();
  const dialled = instance.dial(8080);
  const dial = await guest.frame(HostFrame.netDial);
  expect(viewOf(dial.payload).getUint16(0, true)).toBe(8080);
  guest.send(AgentFrame.netRefused, dial.session, packIntegers([32, Refusal.refused]));
  expect(await failure(dialled)).toMatchObject({ code: "conflict", details: { port: 8080, reason: "refused" } });
});

test("a working directory that cannot be entered is an error of the request, for every process", async () => {
  const { guest, instance, sink, begin } = await scripted();
  await begin();
  const additional = exec(instance, { ...SPEC, cwd: "/proc/x" }, sink);
  const { session } = await guest.frame(HostFrame.execOpen, 1);
  guest.send(AgentFrame.error, session, problem(2, "cannot enter /proc/x"));
  const details = { path: "/proc/x", errno: 2 };
  expect(await failure(additional.started)).toMatchObject({ code: "invalid_path", details });
  expect(instance.process(2)).toBeNull();
});

test("all waits for the guest end with the machine", async () => {
  const { guest, instance, sink, begin, end, isDisposed } = await scripted();
  const { command } = await begin();
  const additional = exec(instance, SPEC, sink);
  guest.channel.deliver(null);
  end(monitorExit("QEMU", { code: 137, signal: null }, ""));
  const lost = { code: "unavailable", details: { reason: "vmm_died" } };
  for (const waiting of [command.exit, additional.started, additional.exit])
    expect(await failure(waiting)).toMatchObject(lost);
  expect(instance.processes).toEqual([]);
  expect(await instance.stats()).toMatchObject({ cpuTimeMs: 7 });
  expect(isDisposed()).toBe(false);
  await instance[Symbol.asyncDispose]();
  expect(isDisposed()).toBe(true);
});

test("signals that the guest does not accept are refused as too many", async () => {
  const { guest, begin } = await scripted();
  const { command } = await begin();
  guest.channel.write = () => new Promise(() => undefined);
  const send = async () => {
    for (let sent = 0; sent < 10_000; sent++) command.signal(15, { group: true });
  };
  expect(await failure(send())).toMatchObject({
    code: "too_many_requests",
    message: "the instance cannot have more waiting signals",
    details: { retry_after_seconds: 1 },
  });
});
