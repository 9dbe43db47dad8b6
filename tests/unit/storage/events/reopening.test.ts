import { afterEach, beforeEach, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import type { AccountId, LogId } from "../../../../src/domain/ids.ts";
import type { LogEvent, LogEventData } from "../../../../src/domain/log-event.ts";
import { EventFile, eventLogPath } from "../../../../src/storage/events/event-file.ts";
import { type EventLog, EventLogs } from "../../../../src/storage/events/event-logs.ts";
import type { LogReader } from "../../../../src/storage/events/log-reader.ts";
import type { LogSummary } from "../../../../src/storage/events/log-summary.ts";
import { type DataLayout, dataLayout } from "../../../../src/storage/layout.ts";
import { EVENT_LOG_BYTES_MAX } from "../../../../src/storage/limits.ts";
import { wallClock } from "../../../../src/system/wall-clock.ts";
import { allEvents } from "../../../support/events.ts";
import { filesOpenBelow, testDirectory } from "../../../support/images/layer-files.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";

const ACCOUNT = "alice" as AccountId;
const ID = Bun.randomUUIDv7() as LogId;
const UNLIMITED = Number.POSITIVE_INFINITY;

let layout: DataLayout;
let logs: EventLogs;
beforeEach(async () => {
  layout = dataLayout(testDirectory("event-reopening"));
  await layout.ensure();
  logs = new EventLogs(layout, new Accounts(), wallClock());
});
afterEach(async () => {
  expect(logs.counts).toEqual({ feeds: 0, readers: 0 });
  expect(filesOpenBelow(layout.events)).toEqual([]);
  await rm(layout.root, { recursive: true });
});

const path = () => eventLogPath(layout, ID);
const spawn = (pid: number): LogEventData["spawn"] => ({
  ...{ pid, command: "sh", args: [], cwd: "/", uid: 0, gid: 0, timeout: 60, truncate_output_at: 1000 },
});
const exit = (pid: number): LogEventData["exit"] => ({
  ...{ pid, exit_code: 0, signal: null, timed_out: false, oom_killed: false, core_dump: false },
  ...{ duration_ms: 1, cpu_time_ms: 1, memory_bytes: 1, resources: null },
});

/** Writes a log, and leaves it without a mark of its end, as a killed writer does. */
async function write(work: (log: EventLog) => Promise<void> | void): Promise<Buffer> {
  using log = logs.open(ID);
  await work(log);
  await log.end();
  return readFileSync(path());
}

async function reopened(work: (log: EventLog, summary: LogSummary) => Promise<void> | void): Promise<void> {
  const opened = await logs.reopen(ID);
  if (opened === null) throw new Error("there is no log");
  using log = opened.log;
  try {
    await work(log, opened.summary);
  } finally {
    await log.end();
  }
}

async function events(): Promise<LogEvent[]> {
  using file = EventFile.open(path());
  return file === null ? [] : await Array.fromAsync(allEvents(file));
}
const whole = ({ id, timeNs, spid, type, payload }: LogEvent) =>
  JSON.stringify([id, String(timeNs), spid, type, Buffer.from(payload).toString("base64")]);
const outputBytes = (all: readonly LogEvent[], spid: number, stream: string) =>
  all
    .filter((event) => event.spid === spid && event.type === stream)
    .reduce((sum, { payload: { byteLength } }) => sum + byteLength, 0);

/** The processes without an end in `all`, as a summary of the log has them. */
function expectedOf(all: readonly LogEvent[]) {
  const ended = new Set(all.filter(({ type }) => type === "exit").map(({ spid }) => spid));
  const spids = all.filter(
    ({ type, spid }) => spid !== null && !ended.has(spid) && ["spawn", "stdout", "stderr"].includes(type),
  );
  return [...new Set(spids.map(({ spid }) => spid ?? 0))].map((spid) => ({
    spid,
    stdout: outputBytes(all, spid, "stdout"),
    stderr: outputBytes(all, spid, "stderr"),
    start: all.find((event) => event.spid === spid && event.type === "spawn")?.id ?? null,
  }));
}
const seenIn = ({ running }: LogSummary) =>
  [...running].map(([spid, { keptBytes, start }]) => ({ spid, ...keptBytes, start: start?.event ?? null }));

test("a log that was cut at any byte continues after its last whole event", async () => {
  const bytes = await write(async (log) => {
    const random = seededRandom(seedOfTests());
    log.append(0, "progress", { step: 1 });
    for (const spid of [1, 2]) {
      log.append(spid, "spawn", spawn(spid));
      const outputs = log.outputs(spid, UNLIMITED, spid === 1);
      for (const stream of ["stdout", "stderr", "stdout"] as const) {
        void outputs.write(stream, Buffer.alloc(1 + random.below(30), spid));
        await log.written();
      }
    }
    log.append(2, "exit", exit(2));
    log.append(0, "progress", { step: 2 });
  });
  const all = await events();
  for (let size = 16; size < bytes.byteLength; size++) {
    writeFileSync(path(), bytes.subarray(0, size));
    const before = await events();
    expect(before.map(whole)).toEqual(all.slice(0, before.length).map(whole));
    await reopened((log, summary) => {
      expect(log.nextId).toBe(before.length);
      expect(seenIn(summary)).toEqual(expectedOf(before));

      expect(log.append(0, "progress", { step: 3 })).toBe(before.length);
    });
    const after = await events();
    expect(after.slice(0, -1).map(whole)).toEqual(before.map(whole));
    expect(after.at(-1)?.id).toBe(before.length);
  }
});

test("there is nothing to reopen without a whole mark of the format", async () => {
  expect(await logs.reopen(ID)).toBeNull();
  const bytes = await write((log) => void log.append(0, "progress", {}));
  for (const size of [0, 1, 15]) {
    writeFileSync(path(), bytes.subarray(0, size));
    expect(await logs.reopen(ID)).toBeNull();
  }
  bytes[0] = 0;
  writeFileSync(path(), bytes);
  expect(await logs.reopen(ID)).toBeNull();
  expect(readFileSync(path()).equals(bytes)).toBe(true);
});

test("a damaged record ends a reopened log", async () => {
  const bytes = await write(async (log) => {
    const outputs = log.outputs(1, UNLIMITED, true);
    for (let line = 0; line < 100; line++) {
      void outputs.write(line % 2 === 0 ? "stdout" : "stderr", Buffer.from(`${line}\n`));
      await log.written();
    }
  });
  const random = seededRandom(seedOfTests());
  for (let round = 0; round < 50; round++) {
    const damaged = Buffer.from(bytes);
    const at = 16 + random.below(bytes.byteLength - 16);
    damaged[at] = (damaged[at] ?? 0) ^ (1 << random.below(8));
    writeFileSync(path(), damaged);
    const before = await events();
    expect(before.length).toBeLessThan(100);
    await reopened((log, summary) => {
      expect(log.nextId).toBe(before.length);
      expect(seenIn(summary)).toEqual(expectedOf(before));
    });
    expect(readFileSync(path()).byteLength).toBeLessThanOrEqual(at);
  }
});

test("100,000 records are counted, and a reader finds any of them", async () => {
  const COUNT = 100_000;
  await write(async (log) => {
    const outputs = [1, 2].map((spid) => log.outputs(spid, UNLIMITED, spid === 1));
    for (let line = 0; line < COUNT; line++) {
      void outputs[line % 2]?.write("stdout", Buffer.from(`${line}\n`));
      if (line % 1000 === 0) await log.written();
      log.cut();
    }
  });
  const before = await events();
  await reopened(async (log, summary) => {
    expect(seenIn(summary)).toEqual(expectedOf(before));
    expect(log.nextId).toBe(before.length);
    log.append(0, "progress", {});
    await log.written();
    for (const since of [-1, 4321, before.length - 2]) {
      using reader = logs.read(ACCOUNT, ID, since, false);
      const read = await rest(reader);
      expect([read[0]?.id, read.at(-1)?.id]).toEqual([since + 1, before.length]);
    }
  });
});

async function rest(reader: LogReader): Promise<LogEvent[]> {
  const read: LogEvent[] = [];
  for (let some = await reader.next(); some.length > 0; some = await reader.next()) read.push(...some);
  return read;
}

test("a client that follows a log before it is reopened gets every event", async () => {
  await write((log) => {
    for (let step = 0; step < 10; step++) log.append(0, "progress", { step });
  });
  using reader = logs.read(ACCOUNT, ID, 3, false);
  expect(await rest(reader)).toEqual([]);
  const changed = reader.changed(new AbortController().signal);
  await reopened(async (log) => {
    await changed;
    log.append(0, "progress", { step: 10 });
    await log.written();
    expect((await rest(reader)).map(({ id }) => id)).toEqual([4, 5, 6, 7, 8, 9, 10]);
  });
});

test("a reopened log has no more room than before", async () => {
  const half = EVENT_LOG_BYTES_MAX / 2;
  await write(async (log) => {
    const other = log.outputs(2, UNLIMITED);
    for (let bytes = 0; bytes < half; bytes += 1_048_576) await other.write("stdout", Buffer.alloc(1_048_576));
    void log.outputs(1, half, true).write("stdout", Buffer.alloc(half));
    await log.written();
  });
  await reopened(async (log, summary) => {
    const kept = (spid: number) => summary.running.get(spid)?.keptBytes.stdout ?? 0;
    expect(kept(1)).toBe(half);
    const from = { stdout: { kept: half, dropped: 0 }, stderr: { kept: 0, dropped: 0 } };
    const command = log.outputs(1, half, true, from);
    expect(log.isFull).toBe(true);
    void log.outputs(2, UNLIMITED).write("stdout", Buffer.from("x"));
    void command.write("stderr", Buffer.from("y"));
    expect(command.bytes("stderr")).toEqual({ kept: 1, dropped: 0 });
  });
  expect((await events()).map(({ type, spid }) => `${type} ${spid}`).slice(-2)).toEqual(["size_cap 0", "stderr 1"]);
  await reopened((log, summary) => {
    expect(summary.isCapped).toBe(true);
    const outputs = log.outputs(2, UNLIMITED);
    void outputs.write("stdout", Buffer.from("x"));
    expect(outputs.bytes("stdout")).toEqual({ kept: 0, dropped: 1 });
  });
  expect((await events()).filter(({ type }) => type === "size_cap").length).toBe(1);
});
