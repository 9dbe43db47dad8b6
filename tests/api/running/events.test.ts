import { heapStats } from "bun:jsc";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { connect } from "node:net";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import type { LogEventType } from "../../../src/domain/log-event.ts";
import { silentLog } from "../../../src/log.ts";
import type { EventLog } from "../../../src/storage/events/event-logs.ts";
import { endReaders, OperationChanges } from "../../../src/supervisor/operations/changes.ts";
import { Api, type CallOptions, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { residentMib } from "../../support/appliance/resident.ts";
import { filesOpenBelow } from "../../support/images/layer-files.ts";
import { turns, until } from "../../support/waiting.ts";

const ALICE = "alice" as AccountId;
const RESULT = {
  ...{ exit_code: 0, stdout: { truncated: false, bytes: 6 }, stderr: { truncated: true, bytes: 3 } },
  ...{ cpu_time_ms: 12, memory_bytes: 1_234_567, timed_out: false, isolation: "vm-emulated" },
};

interface Event {
  readonly id: number;
  readonly time: string;
  readonly spid?: number;
  readonly type: LogEventType;
  readonly data: Record<string, unknown>;
}

let api: Api;
let notices: OperationChanges;
beforeAll(async () => {
  api = await Api.start();
});
beforeEach(() => {
  notices = new OperationChanges(silentLog);
  endReaders(notices, api.parts.eventLogs);
});
afterAll(() => api[Symbol.asyncDispose]());

const get = (id: string, query = "", options: CallOptions = {}) =>
  api.call("GET", `/v1/operations/${id}/events${query}`, options);
const asJson = (id: string, query = "") => get(id, query, { headers: { accept: "application/json" } });
const openLogs = () => filesOpenBelow(api.parts.layout.events, api.parts.pid);
/** A client may have an answer before the service has closed the log of the answer. */
const logsAreClosed = () => until("the logs are closed", () => openLogs().length === 0);

/** Events of a stream's text; each has the format of the specification of event streams. */
function eventsOf(text: string): Event[] {
  return text
    .split("\n\n")
    .filter((part) => part !== "" && !part.startsWith(":"))
    .map((part) => {
      const [id, type, data, ...more] = part.split("\n");
      const event = JSON.parse(data?.replace(/^data: /, "") ?? "") as Event;
      expect([id, type, more]).toEqual([`id: ${event.id}`, `event: ${event.type}`, []]);
      return event;
    });
}
const shape = (events: readonly Event[]) => events.map(({ id, spid, type }) => `${id} ${spid ?? "-"} ${type}`);

/** Makes an operation that runs, and opens its log. */
function begin(): { readonly id: OperationId; readonly log: EventLog & Disposable; end(): Promise<void> } {
  const { id } = api.operations.insert(ALICE, "instance");
  api.operations.start(id);
  const log = api.parts.eventLogs.open(id);
  const end = async () => {
    await log.end();
    api.operations.succeed(id, RESULT);
    const operation = { id, accountId: ALICE, kind: "instance" as const };
    notices.emit({ type: "ended", operation, status: "SUCCESS", error: null, phases: [] });
    log[Symbol.dispose]();
  };
  return { id, log, end };
}

/** An operation that wrote to both streams, with another process that wrote, too. */
async function ended(): Promise<OperationId> {
  const { id, log, end } = begin();
  log.append(0, "progress", { step: 1 });
  const command = log.outputs(1, 6, true);
  const other = log.outputs(2, 100);
  void command.write("stdout", Buffer.from("hello\n"));
  void other.write("stdout", Buffer.from("second"));
  void command.write("stderr", Buffer.from([0xff, 0, 0x80, 10, 10, 10, 10]));
  command.end();
  log.append(0, "shutdown", { stopped_at: new Date(0).toISOString(), reason: "job_complete" });
  await end();
  return id;
}
const ALL = [
  "0 0 progress",
  "1 1 stdout",
  "2 2 stdout",
  "3 1 stderr",
  "4 1 truncated",
  "5 0 shutdown",
  "6 - completion",
];

/** Reads a stream as it arrives. */
async function follow(id: string, query = "?follow=true", headers: Record<string, string> = {}) {
  const leaving = new AbortController();
  const response = await fetch(`${api.url}/v1/operations/${id}/events${query}`, {
    headers: { authorization: `Bearer ${api.token}`, ...headers },
    signal: leaving.signal,
  });
  const reader = (response.body as ReadableStream<Uint8Array>).getReader();
  let text = "";
  const more = async (): Promise<boolean> => {
    const { value, done } = await reader.read();
    text += Buffer.from(value ?? []).toString();
    return !done;
  };
  return {
    response,
    /** Everything until an event of that type, or the end. */
    until: async (type: LogEventType | null) => {
      while (type === null || !text.includes(`\nevent: ${type}\n`)) if (!(await more())) break;
      return eventsOf(text.slice(0, text.lastIndexOf("\n\n") + 2));
    },
    more,
    text: () => text,
    leave: () => leaving.abort(),
  };
}

function heldBytes(): number {
  Bun.gc(true);
  return heapStats().heapSize + process.memoryUsage().arrayBuffers;
}

describe("GET /operations/{id}/events", () => {
  test("gives all events of an operation that has ended, its completion last", async () => {
    const id = await ended();
    const answer = await get(id);
    expect(answer.status).toBe(200);
    expect(answer.headers.get("content-type")).toBe("text/event-stream");
    expect(answer.headers.get("cache-control")).toBe("no-cache");
    expect(answer.headers.get("x-accel-buffering")).toBe("no");
    expect(answer.text.startsWith(":")).toBe(true);
    const events = eventsOf(answer.text);
    expect(shape(events)).toEqual(ALL);
    expect(events.map(({ data }) => data).slice(1, 5)).toEqual([
      { content: "hello\n", encoding: "ascii" },
      { content: "second", encoding: "ascii" },
      { content: "/wCACgoK", encoding: "base64" },
      { stream: "stderr", bytes_emitted: 6, bytes_dropped: 1 },
    ]);
    expect(events.at(-1)?.data).toEqual({ status: "SUCCESS", duration_ms: expect.any(Number) });
    for (const { time } of events) expect(time).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$/);
    expect((await asJson(id)).json).toEqual(events);
    // Following what has ended is the same.
    expect(eventsOf((await get(id, "?follow=true")).text)).toEqual(events);
    expect((await api.call("HEAD", `/v1/operations/${id}/events`)).status).toBe(200);
    await logsAreClosed();
    expect(api.parts.eventLogs.counts).toEqual({ feeds: 0, readers: 0 });
  });

  test("returns the events after an event, those of one process, and pages", async () => {
    const id = await ended();
    const lines = async (query: string) => shape((await asJson(id, query)).json);
    expect(await lines("?since=-1")).toEqual(ALL);
    expect(await lines("?since=0")).toEqual(ALL.slice(1));
    expect(await lines("?since=5")).toEqual(ALL.slice(6));
    expect(await lines("?since=6")).toEqual([]);
    // After a power failure a log may have lost its last events: the end is sent after any position.
    expect(await lines("?since=900")).toEqual(ALL.slice(6));
    expect(await lines("?spid=1")).toEqual([...ALL.filter((line) => line.includes(" 1 ")), "6 - completion"]);
    expect(await lines("?spid=77")).toEqual(["6 - completion"]);
    expect(await lines("?limit=3")).toEqual(ALL.slice(0, 3));
    expect(await lines("?limit=3&since=2")).toEqual(ALL.slice(3, 6));
    expect(await lines("?limit=3&since=5")).toEqual(ALL.slice(6));
    expect(shape(eventsOf((await get(id, "?since=0", { headers: { "last-event-id": "3" } })).text))).toEqual(
      ALL.slice(4),
    );
    expect(shape(eventsOf((await get(id, "", { headers: { "last-event-id": "" } })).text))).toEqual(ALL);
    await logsAreClosed();
  });

  test("ends with the end of the operation, also when that left no events", async () => {
    const failed = api.operations.insert(ALICE, "image_import").id;
    api.operations.start(failed);
    const error = { error: "unavailable", message: "gone", details: { a: 1 } } as const;
    api.operations.fail(failed, error);
    const cancelled = api.operations.insert(ALICE, "instance").id;
    api.operations.cancel(ALICE, cancelled);
    const completion = async (id: string) => (await asJson(id)).json.map(({ id: n, data }: Event) => [n, data]);
    expect(await completion(failed)).toEqual([[0, { status: "FAILED", duration_ms: expect.any(Number), error }]]);
    expect(await completion(cancelled)).toEqual([[0, { status: "CANCELLED", duration_ms: 0 }]]);
  });

  test("are empty for an operation that waits, and without `follow` the answer ends at once", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    expect((await asJson(id)).json).toEqual([]);
    expect((await get(id)).text).toBe(": keepalive\n\n");
  });

  test.each([
    ["?since=x", "since"],
    ["?since=-2", "since"],
    ["?since=1.5", "since"],
    ["?since=1&since=2", "since"],
    ["?spid=-1", "spid"],
    ["?spid=", "spid"],
    ["?follow=yes", "follow"],
    ["?limit=0", "limit"],
    ["?limit=100001", "limit"],
    ["?limit=5", "limit"],
  ])("%s is refused", async (query, field) => {
    const { id } = api.operations.insert(ALICE, "instance");
    expect(errorOf(await get(id, query), "validation_error").details).toMatchObject({ field });
  });

  test("an array with `follow`, and malformed ids, are refused", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    expect(errorOf(await asJson(id, "?follow=true"), "validation_error").details).toMatchObject({ field: "follow" });
    for (const last of ["x", "-1", "1.5", "1e3", "9".repeat(16)]) {
      const answer = await get(id, "", { headers: { "last-event-id": last } });
      expect(errorOf(answer, "validation_error").details).toMatchObject({ field: "Last-Event-ID" });
    }
    expect(api.parts.eventLogs.counts).toEqual({ feeds: 0, readers: 0 });
  });

  test("the form is chosen by the Accept header", async () => {
    const id = await ended();
    const typeOf = async (accept: string) =>
      (await get(id, "", { headers: { accept } })).headers.get("content-type")?.replace(/;.*/, "");
    expect(await typeOf("*/*")).toBe("text/event-stream");
    expect(await typeOf("text/event-stream, application/json")).toBe("text/event-stream");
    expect(await typeOf("application/json;q=0.9, text/event-stream;q=0.1")).toBe("application/json");
    expect(await typeOf("application/json;q=0, */*")).toBe("text/event-stream");
    expect(await typeOf("Application/JSON, */*;q=0.5")).toBe("application/json");
  });

  heldTest("sends events as they happen, and the end when GET shows it", async () => {
    const { id } = api.operations.insert(ALICE, "instance");
    const early = await follow(id);
    await early.more();
    expect(early.text()).toBe(": keepalive\n\n");
    api.operations.start(id);
    const log = api.parts.eventLogs.open(id);
    const command = log.outputs(1, 100, true);
    void command.write("stdout", Buffer.from("first"));
    expect(shape(await early.until("stdout"))).toEqual(["0 1 stdout"]);
    const late = await follow(id, "?follow=true&since=0");
    void command.write("stderr", Buffer.from("second"));
    expect(shape(await early.until("stderr"))).toEqual(["0 1 stdout", "1 1 stderr"]);
    expect(shape(await late.until("stderr"))).toEqual(["1 1 stderr"]);
    await log.end();
    api.operations.succeed(id, RESULT);
    const operation = { id, accountId: ALICE, kind: "instance" as const };
    notices.emit({ type: "ended", operation, status: "SUCCESS", error: null, phases: [] });
    log[Symbol.dispose]();
    expect(shape(await early.until(null))).toEqual(["0 1 stdout", "1 1 stderr", "2 - completion"]);
    expect(shape(await late.until(null))).toEqual(["1 1 stderr", "2 - completion"]);
    expect(api.parts.eventLogs.counts).toEqual({ feeds: 0, readers: 0 });
  });

  heldTest("a client that leaves at any byte leaves nothing behind", async () => {
    const { id, log, end } = begin();
    const command = log.outputs(1, 10_000, true);
    for (let count = 0; count < 5; count++) {
      void command.write("stdout", Buffer.from(`line ${count}\n`));
      log.append(0, "progress", { count });
    }
    const { hostname, port } = new URL(api.url);
    const request = `GET /v1/operations/${id}/events?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${api.token}\r\n\r\n`;
    /** Leaves when it has this many bytes. */
    const leaveAfter = async (bytes: number) => {
      const socket = connect(Number(port), hostname);
      const { promise, resolve } = Promise.withResolvers<void>();
      let got = 0;
      socket.on("data", (chunk) => {
        got += chunk.length;
        if (got >= bytes) socket.destroy();
      });
      socket.on("error", () => undefined);
      socket.on("close", () => resolve());
      if (bytes <= 0) socket.write(request.slice(0, request.length + bytes), () => socket.destroy());
      else socket.write(request);
      await promise;
    };
    // They leave while more arrives: in a read, while they wait for the next one, and while their bytes are sent.
    const writing = setInterval(() => log.append(0, "progress", { count: 9 }), 5);
    using _writing = { [Symbol.dispose]: () => clearInterval(writing) };
    await leaveAfter(1);
    const before = heldBytes();
    for (let bytes = -request.length + 1; bytes < 1200; bytes += 5) await leaveAfter(bytes);
    await Promise.all(Array.from({ length: 100 }, (_, index) => leaveAfter(1 + index * 12)));
    await until("no client reads", () => api.parts.eventLogs.counts.readers === 0);
    expect(heldBytes() - before).toBeLessThan(8_000_000);
    expect(openLogs()).toHaveLength(1);
    await end();
    await logsAreClosed();
  });

  heldTest("200 clients follow one operation, and the next one is refused for now", async () => {
    const { id, log, end } = begin();
    const all = await Promise.all(Array.from({ length: 200 }, () => follow(id)));
    const refused = await get(id, "?follow=true");
    errorOf(refused, "too_many_requests");
    expect(refused.headers.get("retry-after")).not.toBeNull();
    expect((await api.call("GET", `/v1/instances/${id}/processes`)).status).toBe(200);
    const command = log.outputs(1, 1_000_000, true);
    for (let count = 0; count < 100; count++) {
      void command.write("stdout", Buffer.alloc(5000, `${count} `));
      if (count % 10 === 0) await turns(1);
    }
    await end();
    const seen = await Promise.all(all.map(({ until }) => until(null)));
    const [first = []] = seen;
    expect(first.at(-1)?.type).toBe("completion");
    expect(first.reduce((bytes, { data }) => bytes + String(data["content"] ?? "").length, 0)).toBe(500_000);
    for (const events of seen) expect(events).toEqual(first);
    expect(api.parts.eventLogs.counts).toEqual({ feeds: 0, readers: 0 });
  });
});

/** Size of all events of an operation, without storing any of them. */
async function streamedBytes(id: string): Promise<number> {
  const headers = { authorization: `Bearer ${api.token}` };
  const { body } = await fetch(`${api.url}/v1/operations/${id}/events`, { headers });
  let bytes = 0;
  for await (const chunk of body as ReadableStream<Uint8Array>) bytes += chunk.byteLength;
  return bytes;
}

test("100,000 events are read in pieces, from any of them", async () => {
  const { id, log, end } = begin();
  for (let count = 0; count < 100_000; count++) {
    log.append(0, "progress", { count, step: "compiling" });
    if (count % 1000 === 0) await turns(1);
  }
  await end();
  // The client of this test leaves garbage in the same process: only what grows from read to read is the service's.
  for (let reads = 0; reads < 3; reads++) await streamedBytes(id);
  Bun.gc(true);
  const before = residentMib(api.parts.pid);
  for (let reads = 0; reads < 5; reads++) expect(await streamedBytes(id)).toBeGreaterThan(10_000_000);
  // The allocator returns what is free in its own time.
  await until("the memory is returned", () => {
    Bun.gc(true);
    return residentMib(api.parts.pid) - before < 60;
  });
  const all = await get(id);
  const counts = Array.from(all.text.matchAll(/"data":{"count":(\d+),/g), ([, count]) => Number(count));
  expect(counts).toEqual(Array.from({ length: 100_000 }, (_, count) => count));
  expect(shape((await asJson(id, "?since=99998")).json)).toEqual(["99999 0 progress", "100000 - completion"]);
  let since = -1;
  for (let page = await asJson(id, "?limit=33334"); page.json.length > 0; ) {
    expect(page.json[0].id).toBe(since + 1);
    since = page.json.at(-1).id;
    page = await asJson(id, `?limit=33334&since=${since}`);
  }
  expect(since).toBe(100_000);
}, 60_000);

test("results have the outputs of the command from the log, however long they are", async () => {
  for (const length of [0, 1, 50_000, 70_000, 3_000_001]) {
    const { id, log } = begin();
    const command = log.outputs(1, length, true);
    const other = log.outputs(2, 1_000_000);
    const bytes = Buffer.from(Array.from({ length }, (_, at) => (at * 31) & 0x7f));
    for (let at = 0; at < length; at += 10_000) {
      void command.write("stdout", bytes.subarray(at, at + 10_000));
      void other.write("stdout", Buffer.from("another process"));
      void command.write(
        "stderr",
        bytes.subarray(at, at + 10_000).map((byte) => byte | 0x80),
      );
    }
    await log.end();
    const result = {
      ...RESULT,
      stdout: { truncated: false, bytes: length },
      stderr: { truncated: true, bytes: length },
    };
    api.operations.succeed(id, result);
    const notice = { id, accountId: ALICE, kind: "instance" as const };
    notices.emit({ type: "ended", operation: notice, status: "SUCCESS", error: null, phases: [] });
    log[Symbol.dispose]();
    const { stdout, stderr } = (await api.call("GET", `/v1/operations/${id}`)).json.result;
    expect([stdout.encoding, stdout.truncated, stderr.truncated]).toEqual(["ascii", false, true]);
    expect(stdout.content === bytes.toString("latin1")).toBe(true);
    const high = Buffer.from(stderr.content, stderr.encoding === "ascii" ? "latin1" : "base64");
    expect(high.equals(bytes.map((byte) => byte | 0x80))).toBe(true);
  }
  await logsAreClosed();
});
