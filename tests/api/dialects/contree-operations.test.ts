/** Operations as the surface for the ConTree clients shows them, in the cases that need no machine. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { Api } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { runningInstance } from "../../support/api/running.ts";
import { parseContreeEvents } from "../../support/contree/events.ts";
import { filesOpenBelow } from "../../support/images/layer-files.ts";
import { writeOutputs } from "../../support/outputs.ts";
import { until } from "../../support/waiting.ts";

const ALICE = "alice" as AccountId;
const RESULT = {
  ...{ exit_code: 137, cpu_time_ms: 1500, memory_bytes: 4096, timed_out: true, isolation: "vm-emulated" },
};

let api: Api;
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());

const path = (id: string, rest = "") => `/contree/v1/operations/${id}${rest}`;
const get = (id: string, rest = "") => api.call("GET", path(id, rest));
const started = (): OperationId => {
  const { id } = api.operations.insert(ALICE, "instance");
  api.operations.start(id);
  return id;
};

/** Ends an instance with these outputs. */
async function succeed(id: OperationId, outputs: Parameters<typeof writeOutputs>[2]): Promise<void> {
  const { stdout, stderr } = await writeOutputs(api.parts.layout, id, outputs);
  api.operations.succeed(id, {
    ...RESULT,
    stdout: { truncated: false, ...stdout },
    stderr: { truncated: true, ...stderr },
  });
}

describe("an operation without its request, and without the start of its log", () => {
  test("has its outputs, the fields of its result, and defaults", async () => {
    const id = started();
    await succeed(id, { stdout: "out\n", stderr: Uint8Array.of(0xff, 0) });
    const { status, json } = await get(id);
    expect([status, json.result, json.metadata.command]).toEqual([200, { image: null, tag: null }, ""]);
    expect(json.metadata.result).toMatchObject({
      stdout: { value: "out\n", encoding: "ascii", truncated: false },
      stderr: { value: "/wA=", encoding: "base64", truncated: true },
      state: { exit_code: -1, signal: 9, timed_out: true, pid: 0 },
      resources: { user_cpu_time: 1.5, max_rss: 4 },
    });
    const events = parseContreeEvents((await get(id, "/events")).text);
    expect(events.map(({ type }) => type)).toEqual(["stdout", "stderr", "completion"]);
  });

  test("closes its files, however long the outputs are, and whenever the client leaves", async () => {
    const id = started();
    const [stdout, stderr] = [randomBytes(3_000_000), Buffer.alloc(2_000_000, '"')];
    await succeed(id, { stdout, stderr });
    const { headers, json } = await get(id);
    expect(headers.get("content-length")).toBeNull();
    const { result } = json.metadata;
    expect(Buffer.from(result.stdout.value, "base64").equals(stdout)).toBe(true);
    expect(result.stderr.value === '"'.repeat(2_000_000)).toBe(true);
    for (let round = 0; round < 5; round++) {
      const leaving = new AbortController();
      const authorization = `Bearer ${api.token}`;
      const response = await fetch(`${api.url}${path(id)}`, { headers: { authorization }, signal: leaving.signal });
      await response.body?.getReader().read();
      leaving.abort();
    }
    await until("no output is open", () => filesOpenBelow(api.parts.layout.events, api.parts.pid).length === 0);
  });
});

describe("an operation that has not begun", () => {
  test("has no result, not even a partial one, and no process to signal", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    for (const query of ["", "?inflight=1"]) {
      const { json, headers } = await get(id, query);
      expect(json).toMatchObject({ status: "PENDING", duration: 0, result: null, metadata: { result: null } });
      expect(headers.get("retry-after")).toBe("1");
    }
    expect(parseContreeEvents((await get(id, "/events")).text)).toEqual([]);
    for (const [method, rest, json] of [
      ["GET", "/subprocesses/1", undefined],
      ["DELETE", "/subprocesses/1", undefined],
      ["POST", "/subprocesses", { command: "true" }],
      ["POST", "/subprocesses/1/stdin", { value: "" }],
    ] as const) {
      const answer = await api.call(method, path(id, rest), { json });
      expect([rest, answer.status, answer.headers.get("retry-after")]).toEqual([rest, 425, "1"]);
    }
    expect((await api.call("DELETE", path(id))).status).toBe(202);
    expect((await get(id)).json).toMatchObject({ status: "CANCELLED", metadata: { result: { state: { pid: 0 } } } });
    for (const [method, rest, json, status] of [
      ["GET", "/subprocesses/1", undefined, 404],
      ["DELETE", "/subprocesses/1", undefined, 409],
      ["POST", "/subprocesses", { command: "true" }, 409],
      ["POST", "/subprocesses/1/stdin", { value: "" }, 410],
    ] as const) {
      expect([rest, (await api.call(method, path(id, rest), { json })).status]).toEqual([rest, status]);
    }
  });

  heldTest("has a stream that is held open until the end", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    const authorization = `Bearer ${api.token}`;
    const { body } = await fetch(`${api.url}${path(id, "/events?follow=1")}`, { headers: { authorization } });
    const reader = (body as ReadableStream<Uint8Array>).getReader();
    expect(Buffer.from((await reader.read()).value ?? "").toString()).toBe(": keepalive\n\n");
    const { value } = await Promise.race([reader.read(), Promise.resolve({ value: undefined })]);
    expect(value).toBeUndefined();
    await reader.cancel();
    await until("its reader has left", () => api.parts.eventLogs.counts.readers === 0);
  });
});

heldTest("an instance has no process to write to after the end of its command, and then of its machine", async () => {
  const running = await runningInstance(api, "echo out; exit 3");
  await running.command.exit;
  const answers = async () => ({
    get: (await get(running.id, "/subprocesses/1")).status,
    signal: (await api.call("DELETE", path(running.id, "/subprocesses/1"))).status,
    start: (await api.call("POST", path(running.id, "/subprocesses"), { json: { command: "true" } })).status,
    stdin: (await api.call("POST", path(running.id, "/subprocesses/1/stdin"), { json: { value: "x" } })).status,
  });
  await until("the command is gone", () => running.instance.process(1) === null);
  expect(await answers()).toEqual({ get: 200, signal: 404, start: 409, stdin: 404 });
  // The log of an operation is open until its end, and here as long as a client follows it.
  const leaving = new AbortController();
  const headers = { authorization: `Bearer ${api.token}` };
  const following = await fetch(`${api.url}${path(running.id, "/events?follow=1")}`, {
    headers,
    signal: leaving.signal,
  });
  await running[Symbol.asyncDispose]();
  expect(await answers()).toEqual({ get: 200, signal: 409, start: 409, stdin: 410 });
  const { json } = await get(running.id, "?inflight=1");
  expect([json.status, json.metadata.result.stdout.value, json.metadata.result.state.exit_code]).toEqual([
    "EXECUTING",
    "out\n",
    3,
  ]);
  // An unreferenced response would be collected, which would end its request.
  expect(following.status).toBe(200);
  leaving.abort();
});

test("a failure has its text, and the figures of the run", async () => {
  const id = started();
  const details = { cpu_time_ms: 20, memory_bytes: 1025 };
  api.operations.fail(id, { error: "unavailable", message: "the machine \u2028 failed", details });
  const { json } = await get(id);
  expect(json).toMatchObject({
    status: "FAILED",
    error: "the machine \u2028 failed",
    result: { image: null, tag: null },
  });
  expect(json).toMatchObject({ consumed_cpu: 0.02, consumed_memory: 2 });
  expect(json.metadata.result).toMatchObject({ stdout: { value: "" }, state: { exit_code: -1, signal: -1 } });
  const [end] = parseContreeEvents((await get(id, "/events?follow=1")).text);
  expect(end?.data).toMatchObject({ status: "FAILED", error: "the machine \u2028 failed", image_size_bytes: 0 });
});

heldTest("a stream that fails says so, and ends", async () => {
  let failing: Api | null = null;
  const logs = {
    read: (...args: Parameters<EventLogs["read"]>) => {
      const real = new EventLogs((failing ?? api).parts.layout, new Accounts(), wallClock()).read(...args);
      real.next = () => Promise.reject(new Error("EIO: secret path"));
      return real;
    },
    scan: () => {
      throw new Error("not asked for");
    },
    written: async () => undefined,
  };
  await using held = await Api.start({ eventLogs: logs });
  failing = held;
  const { id } = held.operations.insert(ALICE, "instance");
  const answer = await held.call("GET", path(id, "/events?follow=1"));
  expect([answer.status, answer.text]).toEqual([
    200,
    ": keepalive\n\n: stream ended with error, retry since last event id\n\n" +
      "event: sse_error\ndata: the events could not be read\n\n",
  ]);
});
