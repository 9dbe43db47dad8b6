/** The costs of guests that send or read as they like, for the callers of the interface. */

import { afterAll, beforeAll, expect, setDefaultTimeout, spyOn } from "bun:test";
import { setImmediate } from "node:timers/promises";
import { Socket } from "../../../src/api/socket.ts";
import type { OperationId } from "../../../src/domain/ids.ts";
import { RunningInstance } from "../../../src/supervisor/instance/running-instance.ts";
import { TimeLimit } from "../../../src/supervisor/instance/time-limit.ts";
import type { ReadyMachine } from "../../../src/supervisor/machines/machine-source.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, PROCESSES_COUNT_MAX } from "../../../src/vm/agent/protocol.ts";
import { Api } from "../../support/api/api.ts";
import { AttachedClient } from "../../support/api/attached.ts";
import { heldTest } from "../../support/api/program.ts";
import { queuedInstance, runningInstance } from "../../support/api/running.ts";
import { openAgent, SPEC } from "../../support/guests/agent-script.ts";
import { quietNetwork } from "../../support/instance-network.ts";
import { until } from "../../support/waiting.ts";

const unrecorded = (): never => {
  throw new Error("this process is not recorded");
};

// The first test may have to build the agent.
setDefaultTimeout(150_000);

/** Limits of the waiting starts of one account, and of items of an attachment in a turn of the event loop. */
const STARTS_COUNT_MAX = 256;
const TURN_ITEMS_COUNT = 64;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

heldTest("an attachment to many small outputs is served a few of them in each turn of the event loop", async () => {
  await using running = await runningInstance(api, "read line; exit 0", { spec: { stdin: "open" } });
  const events = api.parts.instances.eventsOf(running.id as OperationId);
  const outputs = events?.outputs(1, 1_000_000);
  for (let count = 0; count < 5000; count++) {
    void outputs?.write("stdout", Buffer.from("a"));
    void outputs?.write("stderr", Buffer.from("b"));
  }
  await events?.written();
  const send = spyOn(Socket.prototype, "send");
  using _restored = { [Symbol.dispose]: () => send.mockRestore() };
  // Its first turns count, too.
  const opening = AttachedClient.open(api, running.path);
  let longest = 0;
  for (let before = 0; before < 10_000; ) {
    await setImmediate();
    const count = send.mock.calls.length;
    longest = Math.max(longest, count - before);
    before = count;
  }
  expect(longest).toBeLessThanOrEqual(2 * TURN_ITEMS_COUNT);
  using client = await opening;
  await client.socket.until(() => client.of(2).byteLength === 5000);
  expect(client.of(1).toString()).toBe("a".repeat(5000));
});

/** An instance whose guest has started its command and reads nothing since then. */
async function deafInstance(stack: AsyncDisposableStack): Promise<string> {
  const id = await queuedInstance(api);
  api.operations.start(id);
  const { guest, agent } = openAgent();
  const machine = { exited: new Promise(() => undefined), cgroup: { stats: async () => ({ cpuTimeMs: 0 }) } };
  const ready = { machine, agent, isolation: "vm", [Symbol.asyncDispose]: async () => undefined };
  const take = async () => ready as unknown as ReadyMachine;
  const machines = { take, takeUnpooled: take, launcher: async () => "/launch" };
  const never = new AbortController().signal;
  const instance = stack.use(await RunningInstance.take(machines, { vcpus: 1, memoryBytes: 1 }, never));
  const events = stack.use(api.parts.eventLogs.open(id));
  stack.defer(() => events.end());
  const run = stack.use(
    api.parts.instances.open(id, { limit: new TimeLimit(60_000), hostname: "box", events, network: quietNetwork() }),
  );
  stack.use(run.enter(instance));
  const ignore = () => undefined;
  const sink = { started: ignore, output: ignore, onInput: ignore, exited: ignore, record: unrecorded };
  const command = instance.start(SPEC, { ...sink, bytes: () => ({ kept: 0, dropped: 0 }) });
  guest.send(AgentFrame.started, (await guest.frame(HostFrame.execOpen)).session, packIntegers([32, 1]));
  await command.started;
  guest.channel.write = () => new Promise(() => undefined);
  stack.defer(() => guest.channel.deliver(null));
  return id;
}

/** Requests a start on a connection of its own, as `fetch` has too few. Returns the status, if there is one. */
async function requestStart(id: string): Promise<{ readonly status: () => number | null; readonly leave: () => void }> {
  const { hostname, port, host } = new URL(api.url);
  let answer = "";
  const data = (_: unknown, bytes: Buffer) => {
    answer += bytes.toString();
  };
  const connection = await Bun.connect({
    hostname,
    port: Number(port),
    socket: { data },
  });
  const body = '{"command":"true"}';
  const lines = [
    ...[`POST /v1/instances/${id}/processes HTTP/1.1`, `Host: ${host}`, `Authorization: Bearer ${api.token}`],
    ...["Content-Type: application/json", `Content-Length: ${body.length}`],
  ];
  connection.write(`${lines.join("\r\n")}\r\n\r\n${body}`);
  const status = () => (answer === "" ? null : Number(/^HTTP\/1.1 (\d+)/.exec(answer)?.[1]));
  return { status, leave: () => connection.terminate() };
}

heldTest("starts in guests that read nothing are counted, and are dropped when their clients leave", async () => {
  await using stack = new AsyncDisposableStack();
  const ids: string[] = [];
  for (let count = 0; count < 6; count++) ids.push(await deafInstance(stack));
  const processes = () => ids.map((id) => api.parts.instances.find(id as OperationId)?.processes.length ?? 0);
  const starts: Awaited<ReturnType<typeof requestStart>>[] = [];
  const start = async (id: string, count: number) => {
    for (let at = 0; at < count; at++) starts.push(await requestStart(id));
  };
  const statuses = () => starts.flatMap(({ status }) => status() ?? []);
  const [first = "", ...others] = ids;
  // The command is a process, too.
  await start(first, PROCESSES_COUNT_MAX + 6);
  await until("the guest has no room", () => statuses().length === 7);
  expect(processes()[0]).toBe(PROCESSES_COUNT_MAX);
  for (const id of others) await start(id, PROCESSES_COUNT_MAX - 1);
  const surplusCount = starts.length - STARTS_COUNT_MAX;
  await until("the account has no room", () => statuses().length === surplusCount);
  expect(new Set(statuses())).toEqual(new Set([429]));
  for (const { leave } of starts) leave();
  // The command stays, and one start that the guest was reading when its client left.
  await until("the others are dropped", () => processes().every((count) => count <= 2));
});
