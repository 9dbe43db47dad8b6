import { dlopen, FFIType } from "bun:ffi";
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { LayerId, OperationId } from "../../../src/domain/ids.ts";
import { NO_DEFAULTS } from "../../../src/domain/image-defaults.ts";
import { type LogEvent, Spid } from "../../../src/domain/log-event.ts";
import type { OutputStream } from "../../../src/domain/output.ts";
import type { CheckedCommand } from "../../../src/domain/spawn.ts";
import { silentLog } from "../../../src/log.ts";
import { EventFile } from "../../../src/storage/events/event-file.ts";
import { type EventLog, EventLogs } from "../../../src/storage/events/event-logs.ts";
import { IndexMemory } from "../../../src/storage/index/index-memory.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { execute, type InstanceOutcome, resume } from "../../../src/supervisor/instance/execute.ts";
import type { InstanceProcess } from "../../../src/supervisor/instance/instance-process.ts";
import type { Tap } from "../../../src/supervisor/instance/process-taps.ts";
import type { RunningInstance } from "../../../src/supervisor/instance/running-instance.ts";
import { type ResumableInstance, RunningInstances } from "../../../src/supervisor/instance/running-instances.ts";
import { ScratchDisks } from "../../../src/supervisor/machines/scratch-disks.ts";
import { Laps } from "../../../src/supervisor/operations/laps.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { Agent, type AgentConnection } from "../../../src/vm/agent/agent.ts";
import { SocketChannel } from "../../../src/vm/agent/channel.ts";
import { syncAgent } from "../../../src/vm/templates.ts";
import type { Machine } from "../../../src/vm/vmm.ts";
import { allEvents } from "../../support/events.ts";
import { openVmHost, TEST_SHAPE, type VmHost } from "../../support/guests/vm.ts";
import { quietNetwork } from "../../support/instance-network.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

let host: VmHost;
beforeAll(async () => {
  host = await openVmHost("qemu");
});
afterAll(() => host[Symbol.asyncDispose]());

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15" as OperationId;
const ROUNDS = 4;
const SIGUSR1 = 10;
const SIGKILL = 9;
const NEVER = new AbortController().signal;
const { dup2 } = dlopen("libc.so.6", { dup2: { args: [FFIType.i32, FFIType.i32], returns: FFIType.i32 } }).symbols;

/** Writes numbered lines as fast as it can until /stop exists; then its last number to the other stream, and a file. */
const NUMBERS = `i=0
while [ ! -e /stop ]; do
  i=$((i+1)); echo line $i
done
echo changed > /root/made
echo last $i >&2
exit 7`;

const command = (script: string, more: Partial<CheckedCommand> = {}): CheckedCommand =>
  ({
    ...{ argv: ["/bin/sh", "-c", script], env: { PATH: "/bin" }, cwd: "/", uid: 0, gid: 0 },
    ...{ stdin: null, stdinOpen: false, terminal: null, truncateOutputAtBytes: 20_000_000 },
    ...more,
  }) as unknown as CheckedCommand;

const numbers = (count: number) => Array.from({ length: count }, (_, at) => `${at + 1}\n`).join("");

/** The objects of one daemon: once it is gone, its remaining objects do not change the log. */
class Host {
  readonly instances = new RunningInstances();
  readonly resumed = Promise.withResolvers<{ instance: RunningInstance; connections: readonly AgentConnection[] }>();
  outcome: Promise<InstanceOutcome> | null = null;
  #isGone = false;

  log(events: EventLog): EventLog {
    const append: EventLog["append"] = (...event) => {
      return this.#isGone ? events.nextId : events.append(...event);
    };
    const end = async () => {
      if (!this.#isGone) await events.end();
    };
    return new Proxy(events, {
      get: (log, name) => {
        if (name === "append") return append;
        if (name === "end") return end;
        const value: unknown = Reflect.get(log, name, log);
        return typeof value === "function" ? value.bind(log) : value;
      },
    });
  }

  async instance(): Promise<RunningInstance> {
    await until("the command runs", () => this.instances.find(ID)?.isRunning === true);
    return this.instances.find(ID) as RunningInstance;
  }

  /** Starts an additional process. */
  async exec(script: string, more: Partial<CheckedCommand> = {}): Promise<InstanceProcess> {
    const options = { timeoutMs: null, defaults: NO_DEFAULTS, signal: NEVER };
    const started = await this.instances.exec(ID, command(script, more), options);
    return (await this.instance()).process(started?.spid ?? 0) as InstanceProcess;
  }

  /** Writes the run down, between two frames of its guest. */
  async writeDown(): Promise<ResumableInstance> {
    await (await this.instance()).hold();
    const text = JSON.stringify(this.instances.record(ID));
    this.#isGone = true;
    return JSON.parse(text) as ResumableInstance;
  }
}

/** Reads a tap up to a chunk for which `isLast` is true, or to its end. */
async function readTap(tap: Tap, isLast: (text: string) => boolean): Promise<string> {
  let text = "";
  for await (const { bytes } of tap.chunks()) {
    text += Buffer.from(bytes).toString();
    if (isLast(text)) break;
  }
  return text;
}

/** The output of one process in the log, and its end. */
function logged(events: readonly LogEvent[], spid: number, stream: OutputStream = "stdout"): string {
  const chunks = events.filter((event) => event.spid === spid && event.type === stream);
  return Buffer.concat(chunks.map((event) => event.payload)).toString();
}

function runOf(layout: ReturnType<typeof dataLayout>, layers: LayerStore, events: EventLog, base: string) {
  const submission = {
    ...command(NUMBERS),
    ...{ imageId: "i", timeoutSeconds: 150, files: [], hostname: null, disposable: false, requestedAt: null },
    resources: { ...TEST_SHAPE, diskBytes: 268_435_456 },
  };
  const image = { files: [{ disk: base }] };
  const job = { operationId: ID, submission, image, parentIndex: "/none", defaults: NO_DEFAULTS };
  const scratchDisks = new ScratchDisks({ templates: layout.tmp, temporary: layout.tmp });
  const tools = (owner: Host) => ({
    ...{
      layout,
      layers,
      scratchDisks,
      instances: owner.instances,
      log: silentLog,
      laps: new Laps(),
      network: quietNetwork(),
    },
    ...{ diskUse: { add: () => undefined }, indexMemory: new IndexMemory(), uninvited: () => undefined },
    events: owner.log(events),
  });
  return { job: job as unknown as Parameters<typeof execute>[1], tools };
}

test("a run is written down and continued by other objects during its output, again and again, and no byte is lost or repeated", async () => {
  const layout = dataLayout(join(host.directory, "data"));
  for (const path of [layout.tmp, layout.events, layout.layers]) mkdirSync(path, { recursive: true });
  using layers = new LayerStore({ layout, chainOf: () => ["a" as LayerId] });
  using logs = new EventLogs(layout, new Accounts(), wallClock());
  using events = logs.open(ID);
  const first = await host.clone();
  await using machine: Machine = first.machine;
  const [base, scratch] = await host.disks(machine);
  // The run makes its own scratch.
  rmSync(scratch?.path ?? "");
  const { job, tools } = runOf(layout, layers, events, base?.path ?? "");
  const dispose = async () => undefined;
  const ready = { machine, isolation: "vm" as const, [Symbol.asyncDispose]: dispose };
  const take = async () => ({ ...ready, agent: first.agent });
  const machines = { take, takeUnpooled: take, launcher: async () => "/launch" };

  let now = new Host();
  now.outcome = execute({ ...tools(now), machines }, job, NEVER);
  let channel = machine.channel as SocketChannel;
  let instance = await now.instance();

  const bulk = await now.exec("busybox seq 1 400000");
  const reader = await now.exec("while [ ! -e /go ]; do sleep 0.1; done; exec cat", { stdinOpen: true });
  const terminal = await now.exec("exec sh", { terminal: { rows: 24, columns: 80 }, stdinOpen: true });
  const trap = await now.exec("trap 'echo caught' USR1; while :; do sleep 0.1; done");
  const server = await now.exec("busybox nc -l -p 8080 -e busybox cat");
  let dialled: AgentConnection | null = null;
  await until("the server listens", async () => {
    dialled = await instance.dial(8080).catch(() => null);
    return dialled !== null;
  });
  let connection = dialled as unknown as AgentConnection;
  const spids = { bulk: bulk.spid, reader: reader.spid, terminal: terminal.spid, trap: trap.spid, server: server.spid };
  const process = (name: keyof typeof spids) => instance.process(spids[name]) as InstanceProcess;

  // More than the guest accepts before it reads.
  const input = Buffer.from(numbers(60_000));
  void process("reader")
    .input.write(input, NEVER)
    .catch(() => undefined);
  const echoes: Uint8Array[] = [];
  let echo = connection.chunks();
  let tap = instance.command.taps.open();
  let tapped = "";
  let sentBytes = 0;

  for (let round = 1; round <= ROUNDS; round++) {
    await connection.write(Buffer.from(`round ${round}, `));
    await process("terminal").input.write(Buffer.from(`echo round-$((${round}+100))\n`), NEVER);
    // The reader reads some output, but less than there is, before the objects are thrown away.
    tapped += await readTap(tap, (text) => text.length > 20_000);
    const record = await now.writeDown();
    const session = instance.process(spids.reader)?.record().session;
    sentBytes = record.instance.agent.processes.find((one) => one.session === session)?.stdin.sentBytes ?? 0;
    const fd = dup2(channel.fd, 700 + round);
    channel.close();
    void now.outcome?.catch(() => undefined);
    channel = await SocketChannel.open(fd);

    const next: Host = new Host();
    next.outcome = resume(
      { ...tools(next), machines },
      job,
      {
        record,
        machine: ready,
        outlives: "at_once",
        continueAgent: async (from, options) => {
          const resumedAgent = Agent.resume(channel, from, options);
          await syncAgent(resumedAgent.agent);
          return resumedAgent;
        },
        onResumed: (...given) => next.resumed.resolve({ instance: given[0], connections: given[1] }),
      },
      NEVER,
    );
    next.outcome.catch((error: Error) => next.resumed.reject(error));
    const resumed = await next.resumed.promise;
    now = next;
    instance = resumed.instance;
    expect(instance.processes.map(({ spid }) => spid)).toContain(Spid.command);
    [connection] = resumed.connections as [AgentConnection];
    echo = connection.chunks();
    [tap] = instance.command.taps.opened as [Tap];
  }

  expect(sentBytes).toBeGreaterThan(0);
  expect(sentBytes).toBeLessThan(input.byteLength);
  const rest = process("reader").input.write(input.subarray(sentBytes), NEVER);
  const late = await now.exec("echo late; read line; echo $line", { stdinOpen: true });
  await late.input.write(Buffer.from("to the new one\n"), NEVER);
  expect((await late.exit).exitCode).toBe(0);
  await (await now.exec("echo > /go")).exit;
  await rest;
  const ends = {
    reader: process("reader").exit,
    terminal: process("terminal").exit,
    trap: process("trap").exit,
    server: process("server").exit,
  };
  const bulkEnd = instance.process(spids.bulk)?.exit;
  await process("reader").input.close(NEVER);
  await process("terminal").resize({ rows: 50, columns: 132 });
  await process("terminal").input.write(Buffer.from("busybox stty size; exit 4\n"), NEVER);
  process("trap").signal(SIGUSR1);
  await connection.write(Buffer.from("end"));
  await connection.end();
  for await (const chunk of echo) echoes.push(chunk);
  expect(Buffer.concat(echoes).toString()).toBe(
    `${Array.from({ length: ROUNDS }, (_, at) => `round ${at + 1}, `).join("")}end`,
  );
  expect((await ends.reader).exitCode).toBe(0);
  expect((await ends.terminal).exitCode).toBe(4);
  expect((await ends.server).exitCode).toBe(0);
  await bulkEnd;
  await events.written();
  process("trap").signal(SIGKILL);
  expect((await ends.trap).signal).toBe(SIGKILL);
  const tail = readTap(tap, () => false);
  await (await now.exec("echo > /stop")).exit;
  const outcome = await (now.outcome as Promise<InstanceOutcome>);
  tapped += await tail;

  expect(outcome).toMatchObject({ exitCode: 7, timedOut: false, captured: true });
  expect(outcome.layer?.entryCount).toBeGreaterThan(0);
  await events.end();
  using file = EventFile.open(events.path) as EventFile;
  const all = await Array.fromAsync(allEvents(file));
  // Nothing was dropped for lack of room.
  expect(all.filter(({ type }) => type === "truncated" || type === "size_cap")).toEqual([]);
  const lines = logged(all, Spid.command).trimEnd().split("\n");
  expect(lines.findIndex((line, at) => line !== `line ${at + 1}`)).toBe(-1);
  expect(logged(all, Spid.command, "stderr")).toBe(`last ${lines.length}\n`);
  expect(outcome.stdout).toEqual({ kept: logged(all, Spid.command).length, dropped: 0 });
  // The tap was opened later than the log.
  expect(logged(all, Spid.command).endsWith(tapped.replace(/last \d+\n$/, ""))).toBe(true);
  expect(logged(all, spids.bulk) === numbers(400_000)).toBe(true);
  expect(logged(all, spids.reader) === input.toString()).toBe(true);
  expect(logged(all, spids.trap)).toBe("caught\n");
  expect(logged(all, late.spid)).toBe("late\nto the new one\n");
  const screen = logged(all, spids.terminal);
  for (let round = 1; round <= ROUNDS; round++) expect(screen.split(`round-${round + 100}`).length).toBe(2);
  expect(screen).toContain("50 132");
  const ended = all.filter(({ type }) => type === "exit").map(({ spid }) => spid);
  expect(new Set(ended).size).toBe(ended.length);
  expect(ended).toContain(spids.bulk);
  await outcome.layer?.[Symbol.asyncDispose]();
});
