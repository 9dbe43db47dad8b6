import { afterEach, beforeEach, expect, test } from "bun:test";
import { readdirSync, statSync } from "node:fs";
import { appendFile, mkdir, readdir, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import type { AccountId, LogId } from "../../../../src/domain/ids.ts";
import type { LogEvent, LogEventData } from "../../../../src/domain/log-event.ts";
import {
  EventFile,
  eventLogPath,
  linkEventLog,
  removeEventLog,
  sweepEventLogs,
} from "../../../../src/storage/events/event-file.ts";
import { type EventLog, EventLogs } from "../../../../src/storage/events/event-logs.ts";
import type { LogReader } from "../../../../src/storage/events/log-reader.ts";
import { endOfRing } from "../../../../src/storage/events/ring.ts";
import { type DataLayout, dataLayout } from "../../../../src/storage/layout.ts";
import { openProcessOutput } from "../../../../src/storage/outputs.ts";
import { wallClock } from "../../../../src/system/wall-clock.ts";
import { throwing } from "../../../support/failures.ts";
import { filesOpenBelow, testDirectory } from "../../../support/images/layer-files.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";
import { turns } from "../../../support/waiting.ts";

const ACCOUNT = "alice" as AccountId;
const RING_BYTES = 1_048_576;
const SEGMENT_BYTES = RING_BYTES / 16;
/** A record that begins in a segment ends in it. */
const RECORD_BYTES_MAX = 32_796;
const ID = Bun.randomUUIDv7() as LogId;
const never = new AbortController().signal;

let layout: DataLayout;
let logs: EventLogs;
const open = () => new EventLogs(layout, new Accounts(), wallClock(), RING_BYTES);
beforeEach(async () => {
  layout = dataLayout(testDirectory("event-rings"));
  await layout.ensure();
  logs = open();
});
afterEach(async () => {
  expect(logs.counts).toEqual({ feeds: 0, readers: 0 });
  expect(filesOpenBelow(layout.events)).toEqual([]);
  await rm(layout.root, { recursive: true });
});

const directory = () => eventLogPath(layout, ID);
const segments = () =>
  readdirSync(directory())
    .filter((name) => name !== "note")
    .sort();
const diskBytes = () => segments().reduce((sum, name) => sum + statSync(join(directory(), name)).size, 0);
const lastSegment = () => join(directory(), segments().at(-1) ?? "");

async function during(work: (log: EventLog) => Promise<void> | void): Promise<void> {
  using log = await logs.openRing(ID);
  await work(log);
  await log.end();
}
const fill = (log: EventLog, rounds: number, characters = 500) => {
  for (let round = 0; round < rounds; round++)
    log.append(0, "progress", { id: log.nextId, fill: "x".repeat(characters) });
};

/** The events that a reader can read now. */
async function rest(reader: LogReader): Promise<LogEvent[]> {
  const events: LogEvent[] = [];
  for (let some = await reader.next(); some.length > 0; some = await reader.next()) events.push(...some);
  return events;
}
async function readFrom(since: number): Promise<LogEvent[]> {
  using reader = logs.read(ACCOUNT, ID, since, false);
  return await rest(reader);
}
const json = <Type extends keyof LogEventData>({ payload }: LogEvent): LogEventData[Type] =>
  JSON.parse(Buffer.from(payload).toString());

/** Checks that a reader after `since` has got every event or its number, in order. Returns the id of the last one. */
function requireWhole(events: readonly LogEvent[], since: number): number {
  let next = since + 1;
  for (const event of events) {
    if (event.type === "dropped") {
      const { first, dropped } = json<"dropped">(event);
      expect([dropped, event.id]).toEqual([first - next, first - 1]);
      expect(dropped).toBeGreaterThan(0);
      next = first;
      continue;
    }
    expect(event.id).toBe(next);
    if (event.type === "progress") expect(json<"progress">(event)["id"]).toBe(event.id);
    next += 1;
  }
  return next - 1;
}

test("a ring keeps its latest events on a bounded disk, and says which are gone", async () => {
  await during(async (log) => {
    let largest = 0;
    for (let round = 0; round < 400; round++) {
      fill(log, 40, 2000);
      await log.written();
      largest = Math.max(largest, diskBytes());
      expect(filesOpenBelow(directory()).length).toBe(1);
    }
    expect(log.nextId).toBe(16_000);
    expect(largest).toBeLessThanOrEqual(RING_BYTES + SEGMENT_BYTES + RECORD_BYTES_MAX);
    expect(diskBytes()).toBeGreaterThan((RING_BYTES * 7) / 8);
    expect(segments().length).toBeLessThanOrEqual(17);
  });
  const events = await readFrom(-1);
  expect(events.filter(({ type }) => type === "dropped").length).toBe(1);
  expect(events[0]?.type).toBe("dropped");
  expect(requireWhole(events, -1)).toBe(15_999);
  const first = events[1]?.id ?? 0;
  for (const since of [first - 1, first, first + 300]) {
    const later = await readFrom(since);
    expect(later.map(({ type }) => type)).not.toContain("dropped");
    expect(requireWhole(later, since)).toBe(15_999);
  }
  const missing = await readFrom(first - 8);
  expect(json<"dropped">(missing[0] as LogEvent)).toEqual({ first, dropped: 7 });
});

test("a process that writes much is not held back by a slow follower, which gets the numbers of the events that it missed", async () => {
  using slow = logs.read(ACCOUNT, ID, -1, false);
  const read: LogEvent[] = [];
  await during(async (log) => {
    const command = log.outputs(1, Number.POSITIVE_INFINITY, true);
    const chunk = Buffer.alloc(32_768, "x");
    for (let count = 0; count < 2000; count++) {
      await command.write("stdout", chunk);
      if (count % 600 === 1) read.push(...(await slow.next()));
    }
    await log.written();
    expect(command.bytes("stdout")).toEqual({ kept: 2000 * 32_768, dropped: 0 });
    expect(log.isFull).toBe(false);
    expect(diskBytes()).toBeLessThanOrEqual(RING_BYTES + SEGMENT_BYTES + RECORD_BYTES_MAX);
    command.end();
    log.append(0, "progress", { id: log.nextId });
  });
  read.push(...(await rest(slow)));
  expect(read.filter(({ type }) => type === "dropped").length).toBeGreaterThan(2);
  requireWhole(read, -1);
  expect(read.at(-1)?.type).toBe("progress");
});

test("a reader gets nothing that the ring has dropped, though another one has read it lately", async () => {
  await during(async (log) => {
    fill(log, 2000);
    await log.written();
    using first = logs.read(ACCOUNT, ID, -1, false);
    using second = logs.read(ACCOUNT, ID, -1, false);
    for (const _ of [1, 2]) await first.next();
    for (const _ of [1, 2, 3]) await second.next();
    fill(log, 500);
    await log.written();
    const events = await first.next();
    const [next, following = (await first.next())[0]] = events;
    expect(next?.type).toBe("dropped");
    expect(json<"dropped">(next as LogEvent).first).toBe(following?.id ?? -1);
  });
});

test("ids and positions continue over many openings, whatever is left behind the last whole event", async () => {
  const random = seededRandom(seedOfTests());
  let count = 0;
  for (let life = 0; life < 60; life++) {
    const rounds = random.below(400);
    await during((log) => {
      expect(log.nextId).toBe(count);
      fill(log, rounds, random.below(900));
    });
    count += rounds;
    requireWhole(await readFrom(-1), -1);
    if (count === 0) continue;
    const kind = random.below(4);
    if (kind === 0) await appendFile(lastSegment(), random.bytes(random.below(300)));
    if (kind === 1) await appendFile(lastSegment(), Buffer.alloc(random.below(100_000)));
    if (kind === 2) {
      const { size } = statSync(lastSegment());
      if (size === 0) continue;
      // A crash in the middle of a write: the last record is cut.
      await truncate(lastSegment(), size - 1);
      count -= 1;
    }
    // Another daemon.
    logs = open();
    expect(requireWhole(await readFrom(-1), -1)).toBe(count - 1);
  }
  expect(count).toBeGreaterThan(5000);
  expect(diskBytes()).toBeLessThanOrEqual(RING_BYTES + SEGMENT_BYTES + 100_000);
});

test("readers of any speed get every event or the number of those that are gone, while openings come and go", async () => {
  const random = seededRandom(seedOfTests());
  const readers: { readonly reader: LogReader; readonly since: number; readonly read: LogEvent[] }[] = [];
  let written = 0;
  for (let life = 0; life < 12; life++) {
    await during(async (log) => {
      for (let round = 0; round < 60; round++) {
        fill(log, random.below(60), random.below(4000));
        written = log.nextId;
        if (random.below(8) === 0 && readers.length < 40) {
          const since = random.below(written + 1) - 1;
          readers.push({ reader: logs.read(ACCOUNT, ID, since, false), since, read: [] });
        }
        for (const { reader, read } of readers) if (random.below(6) === 0) read.push(...(await reader.next()));
        if (random.below(5) === 0) await log.written();
        if (random.below(9) === 0) await turns(1);
      }
    });
    for (const { reader, read } of readers) if (random.below(3) === 0) read.push(...(await reader.next()));
  }
  expect(readers.length).toBe(40);
  for (const { reader, since, read } of readers) {
    read.push(...(await rest(reader)));
    expect(requireWhole(read, since)).toBe(written - 1);
    reader[Symbol.dispose]();
  }
});

test("followers wait while nothing has the ring open, and see its events in the order of the calls of all openings", async () => {
  using early = logs.read(ACCOUNT, ID, -1, false);
  expect(await early.next()).toEqual([]);
  const waiting = early.changed(never);
  {
    using one = await logs.openRing(ID);
    using other = await logs.openRing(ID);
    one.append(0, "progress", { id: 0 });
    other.append(null, "state", { from: "running", to: "pausing", reason: "request", head: null });
    const output = one.outputs(2, 100);
    one.append(0, "progress", { id: 2 });
    await one.end();
    // Nothing follows the end of an opening, but what comes through others.
    one.append(0, "progress", { id: 3 });
    expect(output.write("stdout", Buffer.from("late"))).toBeUndefined();
    output.end();
    other.append(null, "ends_soon", { ends_at: "2026-11-20T10:30:00Z" });
    await other.end();
  }
  await waiting;
  expect((await rest(early)).map(({ id, type }) => [id, type])).toEqual([
    [0, "progress"],
    [1, "state"],
    [2, "progress"],
    [3, "ends_soon"],
  ]);
  expect(early.isOver).toBe(false);
  await during((log) => fill(log, 1));
  expect((await rest(early)).map(({ id }) => id)).toEqual([4]);
  logs.endReaders(ID);
  expect(early.isOver).toBe(true);
});

test("a ring that is being opened for writing has all of its events for readers", async () => {
  await during((log) => fill(log, 10));
  using file = EventFile.ring(directory());
  const { sizeBytes } = file;
  const resumed = file.resume((await endOfRing(file)).end);
  expect([file.sizeBytes, file.isEmpty]).toEqual([sizeBytes, false]);
  await resumed;
  expect(file.sizeBytes).toBe(sizeBytes);
});

test("what precedes a lost or damaged part is not read, and the rest is", async () => {
  await during((log) => fill(log, 3000));
  const [, , lost = "", , , short = ""] = segments();
  const firstAfter = (name: string) => Number(segments()[segments().indexOf(name) + 1]?.split("-")[1]);
  for (const damage of [() => rm(join(directory(), lost)), () => truncate(join(directory(), short), 100)]) {
    const name = segments().includes(lost) ? lost : short;
    const first = firstAfter(name);
    await damage();
    const events = await readFrom(-1);
    expect(json<"dropped">(events[0] as LogEvent)).toEqual({ first, dropped: first });
    expect(requireWhole(events, -1)).toBe(2999);
  }
  // The size is right, the content is not.
  const [damaged = "", next = ""] = segments().slice(-4);
  await writeFile(join(directory(), damaged), Buffer.alloc(statSync(join(directory(), damaged)).size));
  const around = (await readFrom(-1))
    .filter(({ type }) => type === "dropped")
    .map((event) => json<"dropped">(event).first);
  expect(around).toContain(Number(next.split("-")[1]));
  await during((log) => fill(log, 10));
  expect((await readFrom(2990)).length).toBe(19);
});

test("ids are not bounded by the 32 bits of a record", async () => {
  const first = 2 ** 32 - 5;
  await mkdir(directory());
  await writeFile(join(directory(), `${"0".repeat(16)}-${String(first).padStart(16, "0")}`), "");
  await during((log) => fill(log, 10));
  const events = await readFrom(first - 1);
  expect(requireWhole(events, first - 1)).toBe(first + 9);
  await during((log) => expect(log.nextId).toBe(first + 10));
});

test("a search and an output continue at the first kept event, and their positions are valid in later openings", async () => {
  const numbers = Buffer.from(Array.from({ length: 400_000 }, (_, at) => `${at}\n`).join(""));
  await during(async (log) => {
    const output = log.outputs(7, Number.POSITIVE_INFINITY);
    for (let at = 0; at < numbers.byteLength; at += 10_000)
      await output.write("stdout", numbers.subarray(at, at + 10_000));
    output.end();
    log.append(7, "stdin", { bytes: 1 });
  });
  const search = async () => {
    let [bytes, from] = [0, { id: -1, offset: -1 }];
    const onOutput = (_spid: number | null, _stream: string, size: number, id: number, offset: number) => {
      if (bytes === 0) from = { id, offset };
      bytes += size;
    };
    const others = await Array.fromAsync(logs.scan(ID, { first: 0, hasEnded: false, onOutput }));
    return { bytes, from, types: others.flat().map(({ type }) => type) };
  };
  const { bytes, from, types } = await search();
  expect(types).toEqual(["stdin"]);
  expect(bytes).toBeLessThan(numbers.byteLength);
  expect(from.id).toBe(json<"dropped">((await readFrom(-1))[0] as LogEvent).first);
  await during((log) => fill(log, 10));
  logs = open();
  expect((await search()).from).toEqual(from);
  const output = await openProcessOutput(layout, ID, { spid: 7, stream: "stdout", bytes, from });
  if (output instanceof Uint8Array) throw new Error("a short output");
  const pieces: Buffer[] = [];
  for await (const piece of output.pieces()) pieces.push(Buffer.from(piece));
  expect(Buffer.concat(pieces).equals(numbers.subarray(-bytes))).toBe(true);
  // A reader never takes what is left for the whole.
  const late = output.pieces();
  await late.next();
  await during((log) => fill(log, 4000));
  expect(await throwing(Array.fromAsync(late))).toThrow("the log dropped");
  output[Symbol.dispose]();
});

test("a copy of a ring that is in use has whole events, and continues by itself", async () => {
  const copy = dataLayout(join(layout.root, "copy"));
  await copy.ensure();
  await during(async (log) => {
    fill(log, 2000);
    await log.written();
    await linkEventLog(layout, copy, ID);
    fill(log, 2000);
  });
  await linkEventLog(layout, copy, Bun.randomUUIDv7() as LogId);
  expect(await readdir(copy.events)).toEqual([ID]);
  const copied = new EventLogs(copy, new Accounts(), wallClock(), RING_BYTES);
  {
    using log = await copied.openRing(ID);
    expect(log.nextId).toBe(2000);
    fill(log, 100);
    await log.end();
    using reader = copied.read(ACCOUNT, ID, -1, false);
    expect(requireWhole(await rest(reader), -1)).toBe(2099);
  }
  expect(requireWhole(await readFrom(-1), -1)).toBe(3999);
});

test("the removal of a log removes all of its segments, also when it has no row", async () => {
  await during((log) => fill(log, 1000));
  expect(segments().length).toBeGreaterThan(5);
  await sweepEventLogs(layout, (ids) => new Set(ids), never);
  expect(segments().length).toBeGreaterThan(5);
  await sweepEventLogs(layout, () => new Set(), never);
  expect(await readdir(layout.events)).toEqual([]);
  await during((log) => fill(log, 1000));
  await removeEventLog(layout, ID);
  expect(await readdir(layout.events)).toEqual([]);
});
