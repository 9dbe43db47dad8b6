/** A machine that an earlier daemon left, whose monitor its guest has taken over: over real sockets, with a scripted monitor. */
import { afterEach, describe, expect, jest, test } from "bun:test";
import { existsSync, readdirSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import * as net from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Cgroup } from "../../../src/cgroup/cgroup.ts";
import { homePaths } from "../../../src/vm/jail/jailed-vmm.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { HeldRoots } from "../../../src/vm/jail/vmm-roots.ts";
import { VmmError } from "../../../src/vm/machine-end.ts";
import { openQemuMachine } from "../../../src/vm/qemu/existing.ts";
import { type ForkContext, QemuFork } from "../../../src/vm/qemu/fork.ts";
import { Mirror } from "../../../src/vm/qemu/mirror.ts";
import type { Qmp } from "../../../src/vm/qemu/qmp.ts";
import type { MachineRecord } from "../../../src/vm/vmm.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { turns } from "../../support/waiting.ts";

const ID = "0191f3a0-0000-7000-8000-000000000001";
const UID = 70_000;
const GREETING = '{"QMP": {"version": {}, "capabilities": []}}\r\n';

type Say = (text: string) => void;
/** Answers of a monitor: a value for each command; a function sends what it likes. */
type Answers = Readonly<Record<string, unknown>>;

const HONEST: Answers = {
  qmp_capabilities: {},
  "query-block-jobs": [],
  "query-named-block-nodes": [{ "node-name": "disk0" }],
  "query-block": [{ device: "", inserted: { "node-name": "disk0" } }],
  "query-status": { status: "running" },
};

afterEach(() => void jest.useRealTimers());

/** A monitor with these answers instead of honest ones. */
async function machineWith(stack: AsyncDisposableStack, answers: Answers) {
  const vmsDirectory = await mkdtemp("/tmp/coppice-monitor-");
  stack.defer(() => rm(vmsDirectory, { recursive: true, force: true }));
  const { sockets, directory } = homePaths(join(vmsDirectory, ID));
  await mkdir(sockets, { recursive: true });
  await mkdir(directory);
  let isAlive = true;
  const clients = new Set<net.Socket>();
  const received = new Set<string>();
  const listen = async (name: string, take: (say: Say, line: string) => void) => {
    const server = net.createServer((client) => {
      clients.add(client.on("error", () => undefined));
      if (name === "monitor") client.write(GREETING);
      const say = (text: string) => void client.write(text);
      createInterface(client).on("line", (line) => take(say, line));
    });
    await new Promise<void>((resolve) => server.listen(join(sockets, `${name}.sock`), resolve));
    stack.defer(() => void server.close());
  };
  await listen("agent", () => undefined);
  await listen("monitor", (say, line) => {
    const { execute, id } = JSON.parse(line);
    received.add(execute);
    const answer = { ...HONEST, ...answers }[execute];
    if (typeof answer === "function") answer(say, id);
    else say(`${JSON.stringify({ return: answer ?? {}, id })}\r\n`);
  });
  const kill = async () => {
    isAlive = false;
    for (const client of clients) client.destroy();
  };
  stack.defer(kill);
  const pids = async () => (isAlive ? [1] : []);
  const cgroup = { name: ID, pids, kill, [Symbol.asyncDispose]: kill } as unknown as Cgroup;
  const uids = new UidPool(UID, 1);
  const heldRoots = new HeldRoots();
  const assets = { memoryCopier: "/nonexistent" };
  const host = { vmsDirectory, cgroups: { open: () => cgroup }, uids, heldRoots, assets };
  const identity = { pid: 1, startTicks: 0 };
  const record = {
    ...{ id: ID, uid: UID, shape: { vcpus: 1, memoryBytes: 4096 }, root: "/nowhere", vmm: "qemu", version: "7.2" },
    ...{ launcher: identity, monitor: identity, disks: [{ serial: "S", node: "disk0" }], nextLun: 1, copiesCount: 0 },
    ...{ templateBytes: 0, acceleration: "tcg" },
  } as unknown as MachineRecord;
  const open = () => openQemuMachine(host as unknown as Parameters<typeof openQemuMachine>[0], record);
  const isGone = () => ({
    alive: isAlive,
    home: existsSync(join(vmsDirectory, ID)),
    root: heldRoots.has("/nowhere"),
  });
  return { open, isGone, directory, uids, received };
}

const GONE = { alive: false, home: false, root: false };
const openFilesCount = (): number => readdirSync("/proc/self/fd").length;

test("an honest monitor's machine is opened", async () => {
  await using stack = new AsyncDisposableStack();
  const { open, isGone } = await machineWith(stack, {});
  const machine = await open();
  expect(machine.id).toBe(ID);
  expect(isGone().alive).toBe(true);
  await machine[Symbol.asyncDispose]();
  expect(isGone()).toEqual(GONE);
});

/** An array of arrays that is too deep for a recursive function. */
const DEEP = `${"[".repeat(200_000)}${"]".repeat(200_000)}`;
const event = (data: string): string => `{"event": "STOP", "data": ${data}}\n`;

describe("a machine is ended, and nothing of it is left, when its monitor", () => {
  const LIES: Record<string, Answers> = {
    "breaks its protocol": { qmp_capabilities: (say: Say) => say("[]\n") },
    "sends events without end": { qmp_capabilities: (say: Say) => say(event("{}").repeat(20_000)) },
    "sends large events": { qmp_capabilities: (say: Say) => say(event(`{"a": "${"x".repeat(100_000)}"}`)) },
    "sends lines without text": { qmp_capabilities: (say: Say) => say("\r\n".repeat(20_000)) },
    "sends a line without an end": { "query-block": (say: Say) => say("x".repeat(5_000_000)) },
    "lists other disks": { "query-block": [{ inserted: { "node-name": "disk1" } }] },
    "lists a disk twice": { "query-block": Array(2).fill({ inserted: { "node-name": "disk0" } }) },
    "lists no disks": { "query-block": [{ inserted: null }, null, 7, "x"] },
    "lists disks without texts": { "query-block": [{ inserted: { "node-name": { toString: null } } }] },
    "lists deep disks": {
      "query-block": (say: Say, id: number) => say(`{"return": [{"inserted": {"node-name": ${DEEP}}}], "id": ${id}}\n`),
    },
    "lists jobs without texts": {
      "query-block-jobs": (say: Say, id: number) => say(`{"return": [{"device": ${DEEP}}], "id": ${id}}\n`),
      "block-job-cancel": (say: Say) => say("[]\n"),
    },
    "lists too many nodes": { "query-named-block-nodes": Array(100_000).fill({ "node-name": "copy1" }) },
    "gives no list": { "query-named-block-nodes": "none" },
    "is in an unknown state": { "query-status": { status: { toString: null } } },
    "answers null": { "query-status": null },
    "breaks its protocol late": { "query-status": (say: Say) => say("bye\n") },
  };

  test.each(Object.keys(LIES))("%s", async (lie) => {
    await using stack = new AsyncDisposableStack();
    const { open, isGone, uids } = await machineWith(stack, LIES[lie] ?? {});
    const before = openFilesCount();
    expect(await failureOf(open())).toBeInstanceOf(VmmError);
    expect(isGone()).toEqual(GONE);
    expect((await uids.acquire()).uid).toBe(UID);
    await turns();
    expect(openFilesCount()).toBeLessThanOrEqual(before);
  });

  test.each<[string, Answers]>([
    ["never accepts a command", { qmp_capabilities: () => undefined }],
    ["never answers a query", { "query-block": () => undefined }],
    ["has a copy that does not end", { "query-block-jobs": [{ device: "copy1" }] }],
    [
      "has left a state with an event, and takes it back",
      { "query-status": once({ status: "internal-error" }, { status: "running" }) },
    ],
  ])("%s, within seconds", async (_, answers) => {
    await using stack = new AsyncDisposableStack();
    const { open, isGone, received } = await machineWith(stack, answers);
    jest.useFakeTimers();
    let isOver = false;
    const failed = failureOf(open()).finally(() => {
      isOver = true;
    });
    while (!Object.keys(answers).every((command) => received.has(command))) await turns(1);
    let passedMs = 0;
    for (; !isOver && passedMs < 60_000; passedMs += 100) {
      await turns(100);
      jest.advanceTimersByTime(100);
    }
    expect(await failed).toBeInstanceOf(VmmError);
    expect(passedMs).toBeLessThan(25_000);
    expect(isGone()).toEqual(GONE);
  });
});

/** Answers differently from the second time on. */
function once(first: unknown, later: unknown) {
  let count = 0;
  return (say: Say, id: number) => say(`${JSON.stringify({ return: count++ === 0 ? first : later, id })}\n`);
}

test("only files of copies are removed, whatever the monitor names", async () => {
  await using stack = new AsyncDisposableStack();
  const names = ["copy1", "copy2/../S", "copy../../exit", "S", "copy1\n", "copy", ["copy1"], { toString: null }];
  const nodes = names.map((name) => ({ "node-name": name }));
  const { open, directory } = await machineWith(stack, { "query-named-block-nodes": nodes });
  for (const name of ["copy1", "copy10", "S", "copy"]) await writeFile(join(directory, name), "");
  const machine = await open();
  expect(readdirSync(directory).sort()).toEqual(["S", "copy", "copy10"]);
  await machine[Symbol.asyncDispose]();
});

test("a machine whose monitor ends while its memory is opened is not forked: another process may have its pid", async () => {
  const monitor = Bun.spawn(["sleep", "60"]);
  const answers: Record<string, unknown> = {
    "query-commands": [{ name: "xen-save-devices-state" }],
    "qom-get": "pc-q35-7.2-machine",
    "human-monitor-command": "Host virtual address for 0x0 (m0) is 0x7f0000000000",
  };
  const machine = {
    ...{ pid: monitor.pid, shape: { vcpus: 1, memoryBytes: 4096 } },
    cgroup: { pids: async () => [monitor.pid] },
    qmp: { execute: async (command: string) => answers[command] },
    copyDisk: async () => {
      monitor.kill("SIGKILL");
      await monitor.exited;
      throw new Error("no disk");
    },
  };
  const context = { machine, disks: [], program: "/nonexistent", acceleration: "tcg" } as unknown as ForkContext;
  const options = { scratchPath: "/nonexistent", signal: new AbortController().signal };
  expect(await throwing(QemuFork.prepare(context, options))).toThrow("the machine has ended");
});

test("a copy of a disk is given up although the monitor neither finishes nor ends it", async () => {
  const directory = await mkdtemp("/tmp/coppice-mirror-");
  await using _directory = { [Symbol.asyncDispose]: () => rm(directory, { recursive: true }) };
  await writeFile(join(directory, "S"), "disk");
  const commands: string[] = [];
  const execute = async (command: string) => void commands.push(command);
  const machine = {
    uid: UID,
    directory,
    exited: new Promise<never>(() => undefined),
    qmp: { execute } as unknown as Qmp,
  };
  const leaving = new AbortController();
  const listen = () => ({ [Symbol.dispose]: () => undefined });
  const copy = { node: "disk0", name: "copy1", serial: "S", path: join(directory, "own"), pauseMsMax: 1 };
  jest.useFakeTimers();
  let isOver = false;
  const failed = failureOf(Mirror.open(machine, { ...copy, listen, signal: leaving.signal })).finally(() => {
    isOver = true;
  });
  while (!commands.includes("blockdev-mirror")) await turns(1);
  leaving.abort(new Error("not wanted"));
  while (!commands.includes("block-job-cancel")) await turns(1);
  for (let passedMs = 0; !isOver && passedMs < 60_000; passedMs += 1000) {
    await turns(20);
    jest.advanceTimersByTime(1000);
  }
  expect(await failed).toBe(leaving.signal.reason);
  expect(commands.at(-1)).toBe("blockdev-del");
  expect(readdirSync(directory).sort()).toEqual(["S", "own"]);
});
