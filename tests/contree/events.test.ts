import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { READERS_COUNT_MAX } from "../../src/storage/events/event-logs.ts";
import { UNKNOWN_UUID } from "../support/api/samples.ts";
import { Contree, contreeError } from "../support/contree/contree.ts";
import {
  type ContreeEvent,
  contreeEvents,
  followUntil,
  openEvents,
  outputOfEvents,
  parseContreeEvents,
} from "../support/contree/events.ts";
import { operationOf } from "../support/contree/runs.ts";
import { seededRandom, seedOfTests } from "../support/random.ts";

// A busy host boots an emulated machine in many times the usual three seconds.
setDefaultTimeout(180_000);

const MIB = 1_048_576;
const KEYS: Readonly<Record<string, readonly string[]>> = {
  init: ["started_at", "runtime_path", "verbose", "init_pid"],
  spawn: ["pid", "command", "args", "shell", "cwd", "uid", "gid", "timeout", "truncate_at"],
  stdout: ["value", "encoding"],
  stderr: ["value", "encoding"],
  truncated: ["stream", "bytes_emitted", "bytes_dropped"],
  exit: ["pid", "code", "signal", "timed_out", "duration_ms", "resources"],
  shutdown: ["stopped_at", "reason"],
  completion: ["status", "duration_ms"],
};

let contree: Contree;
beforeAll(async () => {
  contree = await Contree.start();
});
afterAll(() => contree[Symbol.asyncDispose]());

const spawn = (command: string, more: Record<string, unknown> = {}) =>
  contree.appliance.spawn({ image: contree.image, command, shell: true, disposable: true, ...more });
const ended = async (command: string, more: Record<string, unknown> = {}): Promise<string> => {
  const id = await spawn(command, more);
  await contree.appliance.finished(id);
  return id;
};
const typesOf = (events: readonly ContreeEvent[]) => events.map(({ type }) => type);

describe("the events of a run", () => {
  test("have all fields that clients require", async () => {
    const id = await ended("cat; echo problem >&2; head -c 200 /dev/zero; exit 3", {
      ...{ stdin: "given", timeout: 77, cwd: "/tmp", disposable: false, truncate_output_at: 100 },
    });
    const response = await openEvents(contree, id, { query: "?follow=0" });
    expect(response.headers.get("content-type")).toStartWith("text/event-stream");
    expect(response.headers.get("cache-control")).toBe("no-cache");
    const events = parseContreeEvents(await response.text());
    expect(typesOf(events).filter((type) => type !== "stdout" && type !== "stderr")).toEqual([
      ...["init", "spawn", "truncated", "exit", "shutdown", "completion"],
    ]);
    for (const { type, ts, spid, data } of events) {
      expect(Object.keys(data)).toEqual(expect.arrayContaining([...(KEYS[type] ?? [])]));
      expect(Date.parse(ts)).toBeGreaterThan(0);
      expect([type, spid]).toEqual([type, type === "completion" ? undefined : /init|shutdown/.test(type) ? 0 : 1]);
    }
    expect(events.find(({ type }) => type === "spawn")?.data).toMatchObject({
      ...{ command: "/bin/sh", args: ["-c", "cat; echo problem >&2; head -c 200 /dev/zero; exit 3"], shell: true },
      ...{ cwd: "/tmp", uid: 0, gid: 0, timeout: 77, truncate_at: 100 },
    });
    expect(events.find(({ type }) => type === "truncated")?.data).toEqual({
      ...{ stream: "stdout", bytes_emitted: 100, bytes_dropped: 105 },
    });
    const exit = events.find(({ type }) => type === "exit")?.data;
    expect(exit).toMatchObject({ code: 3, signal: -1, timed_out: false, core_dump: false });
    expect(Object.values(exit.resources).every(Number.isInteger)).toBe(true);
    expect(outputOfEvents(events, 1, "stdout")).toEqual(Buffer.concat([Buffer.from("given"), Buffer.alloc(95)]));
    expect(outputOfEvents(events, 1, "stderr").toString()).toBe("problem\n");
    const { image } = (await contree.appliance.finished(id)).result as unknown as { image: string };
    expect(events.at(-1)?.data).toMatchObject({ status: "SUCCESS", result_image_uuid: image, error: null });
    const { image_size: bytes } = await operationOf(contree, id);
    expect(bytes).toBeGreaterThan(0);
    expect(events.at(-1)?.data.image_size_bytes).toBe(bytes);
  });

  test("have increasing ids from 0, the same in every read", async () => {
    const id = await ended("echo a; sleep 0.1; echo b >&2", { stdin: "x" });
    const events = await contreeEvents(contree, id);
    const ids = events.map(({ id: number }) => number);
    expect(ids[0]).toBe(0);
    expect(ids).toEqual([...new Set(ids)].sort((a, b) => a - b));
    for (const query of ["?follow=1", "?follow", "?since=-1"]) {
      expect(await contreeEvents(contree, id, query)).toEqual(events);
    }
  });

  test("of a signal and of a time limit have no exit code", async () => {
    const exitOf = async (command: string, more = {}) =>
      (await contreeEvents(contree, await ended(command, more))).find(({ type }) => type === "exit")?.data;
    expect(await exitOf("kill -TERM $$")).toMatchObject({ code: -1, signal: 15, timed_out: false });
    expect(await exitOf("exit 143")).toMatchObject({ code: 143, signal: -1 });
    expect(await exitOf("sleep 100", { timeout: 1 })).toMatchObject({ code: -1, signal: 9, timed_out: true });
  });

  test("arrive while it runs; a cancelled run keeps its log", async () => {
    const id = await spawn("echo begun; sleep 1000", { timeout: 900 });
    const events = await followUntil(contree, id, ({ type }) => type === "stdout");
    expect(outputOfEvents(events, 1, "stdout").toString()).toBe("begun\n");
    const now = await contreeEvents(contree, id);
    expect(typesOf(now)).not.toContain("completion");
    expect((await contree.call("DELETE", `/operations/${id}`)).status).toBe(202);
    const all = await contreeEvents(contree, id, "?follow=1");
    expect(all.slice(0, events.length)).toEqual(events);
    expect(all.at(-1)).toMatchObject({ type: "completion", data: { status: "CANCELLED", result_image_uuid: null } });
    expect(typesOf(all)).not.toContain("exit");
  });

  test("end when the end can be read", async () => {
    for (let round = 0; round < 4; round++) {
      const id = await spawn("true");
      await followUntil(contree, id, ({ type }) => type === "completion");
      const { status } = (await (await contree.appliance.fetch(`/operations/${id}`)).json()) as { status: string };
      expect(status).toBe("SUCCESS");
    }
  });
});

describe("a part of the events", () => {
  let id = "";
  let all: ContreeEvent[] = [];
  beforeAll(async () => {
    id = await ended("for i in 1 2 3 4; do echo $i; sleep 0.05; echo $i >&2; sleep 0.05; done");
    all = await contreeEvents(contree, id);
  });
  const after = (since: number) => all.filter((event) => event.id > since);

  test("begins after `since`, or after Last-Event-Id, which wins", async () => {
    for (const { id: since } of all) {
      expect(await contreeEvents(contree, id, `?since=${since}`)).toEqual(after(since));
      expect(await contreeEvents(contree, id, "?follow=1", { "last-event-id": String(since) })).toEqual(after(since));
      expect(await contreeEvents(contree, id, "?since=0", { "Last-Event-Id": String(since) })).toEqual(after(since));
    }
    // After a power failure a log may have lost its last events: the end is sent for any `since`.
    expect(typesOf(await contreeEvents(contree, id, "?since=999999"))).toEqual(["completion"]);
  });

  test("has the events of one process, without the end of the operation", async () => {
    const own = all.filter(({ spid }) => spid === 1);
    for (const query of ["?spid=1", "?spid=1&follow=1"]) expect(await contreeEvents(contree, id, query)).toEqual(own);
    expect(typesOf(await contreeEvents(contree, id, "?spid=0&follow=1"))).toEqual(["init", "shutdown"]);
    expect(await contreeEvents(contree, id, "?spid=9")).toEqual([]);
  });

  test.each(["?since=x", "?since=1.5", "?since=", "?spid=-1", "?spid=one", "?follow=yes", "?since=1&since=2"])(
    "%s is 400",
    async (query) => {
      contreeError(await contree.call("GET", `/operations/${id}/events${query}`), 400, "validation_error");
    },
  );

  test("malformed headers and ids are 400, unknown ids 404", async () => {
    const path = `/operations/${id}/events`;
    const wrong = { headers: { "last-event-id": "abc" } };
    contreeError(await contree.call("GET", path, wrong), 400, "validation_error");
    contreeError(await contree.call("GET", "/operations/nothing/events"), 400, "validation_error");
    contreeError(await contree.call("GET", `/operations/${UNKNOWN_UUID}/events`), 404, "not_found");
    const token = await contree.appliance.createToken("another-account");
    contreeError(await contree.call("GET", path, { token }), 404, "not_found");
    const scoped = await contree.appliance.createToken("tester", "--scope", "images:read");
    contreeError(await contree.call("GET", path, { token: scoped }), 403, "forbidden");
  });
});

test("an import has a log, which ends", async () => {
  const { uuid } = (await (await contree.appliance.post("/images/import", { registry: contree.reference })).json()) as {
    uuid: string;
  };
  const events = await contreeEvents(contree, uuid, "?follow=1");
  const { image } = (await contree.appliance.finished(uuid)).result as unknown as { image: string };
  expect(typesOf(events)).toEqual(["completion"]);
  expect(events[0]?.data).toMatchObject({ status: "SUCCESS", result_image_uuid: image });
  expect(events[0]?.data.image_size_bytes).toBeGreaterThan(0);
});

test("a reader that is cut off anywhere, and resumes, gets every byte", async () => {
  const random = seededRandom(seedOfTests());
  const id = await spawn("head -c 3000000 /dev/urandom | tee /proc/self/fd/2 | od -An -tx1", {
    ...{ truncate_output_at: 10 * MIB, timeout: 600 },
  });
  const seen: ContreeEvent[] = [];
  while (seen.at(-1)?.type !== "completion") {
    const leaving = new AbortController();
    const last = seen.at(-1);
    const headers = last === undefined ? {} : { "last-event-id": String(last.id) };
    const { body } = await openEvents(contree, id, { query: "?follow=1", headers, signal: leaving.signal });
    const bytesMax = random.below(900_000);
    let text = "";
    for await (const chunk of body as ReadableStream<Uint8Array>) {
      text += Buffer.from(chunk).toString("latin1");
      if (text.length > bytesMax) break;
    }
    leaving.abort();
    seen.push(...parseContreeEvents(text.slice(0, bytesMax)));
  }
  expect(seen).toEqual(await contreeEvents(contree, id));
  const dumped = outputOfEvents(seen, 1, "stdout").toString().replaceAll(/\s+/g, "");
  expect(outputOfEvents(seen, 1, "stderr").toString("hex") === dumped).toBe(true);
});

test("followers that never read are bounded, do not delay others, and free their places", async () => {
  const id = await spawn("read line; head -c 8000000 /dev/zero; read line", {
    ...{ stdin_open: true, truncate_output_at: 10 * MIB, timeout: 600 },
  });
  await followUntil(contree, id, ({ type }) => type === "spawn");
  const leaving = new AbortController();
  const { signal } = leaving;
  const streams = Array.from({ length: READERS_COUNT_MAX }, () =>
    openEvents(contree, id, { query: "?follow=1", signal }),
  );
  expect(new Set((await Promise.all(streams)).map(({ status }) => status))).toEqual(new Set([200]));
  const refused = await contree.call("GET", `/operations/${id}/events?follow=1`);
  contreeError(refused, 429, "too_many_requests");
  expect(Number(refused.headers.get("retry-after"))).toBeGreaterThan(0);
  const write = (content: string, close: boolean) =>
    contree.appliance.post(`/instances/${id}/processes/1/stdin`, { content, close });
  expect((await write("go\n", false)).status).toBe(204);
  expect((await write("on\n", true)).status).toBe(204);
  expect((await contree.appliance.finished(id)).status).toBe("SUCCESS");
  leaving.abort();
  expect(outputOfEvents(await contreeEvents(contree, id), 1, "stdout").equals(Buffer.alloc(8_000_000))).toBe(true);
});

test("a stream that a restart of the service has ended resumes after its last event, to the end", async () => {
  await using own = await Contree.start();
  const command = "while :; do echo line; sleep 0.02; done";
  const id = await own.appliance.spawn({ image: own.image, command, shell: true, disposable: true });
  await followUntil(own, id, ({ type }) => type === "stdout");
  const stream = await openEvents(own, id, { query: "?follow=1" });
  const [text] = await Promise.all([stream.text(), own.appliance.down()]);
  const seen = parseContreeEvents(text);
  expect(typesOf(seen)).not.toContain("completion");
  await own.appliance.up();
  const rest = await contreeEvents(own, id, "?follow=1", { "last-event-id": String(seen.at(-1)?.id) });
  expect([...seen, ...rest]).toEqual(await contreeEvents(own, id));
  expect(rest.at(-1)).toMatchObject({ type: "completion", data: { status: "FAILED", error: expect.any(String) } });
});
