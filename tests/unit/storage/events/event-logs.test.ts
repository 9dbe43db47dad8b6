import { afterEach, beforeEach, expect, test } from "bun:test";
import { rm } from "node:fs/promises";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import { ACCOUNT_LIMITS } from "../../../../src/domain/account/limits.ts";
import type { ApiError } from "../../../../src/domain/errors.ts";
import type { AccountId, OperationId } from "../../../../src/domain/ids.ts";
import type { LogEvent } from "../../../../src/domain/log-event.ts";
import { silentLog } from "../../../../src/log.ts";
import { EventLogs, READERS_COUNT_MAX } from "../../../../src/storage/events/event-logs.ts";
import type { LogReader } from "../../../../src/storage/events/log-reader.ts";
import { type DataLayout, dataLayout } from "../../../../src/storage/layout.ts";
import { endReaders, OperationChanges } from "../../../../src/supervisor/operations/changes.ts";
import { wallClock } from "../../../../src/system/wall-clock.ts";
import { throwing } from "../../../support/failures.ts";
import { filesOpenBelow, testDirectory } from "../../../support/images/layer-files.ts";
import { turns } from "../../../support/waiting.ts";

const ACCOUNT = "alice" as AccountId;
const newId = () => Bun.randomUUIDv7() as OperationId;
const never = new AbortController().signal;

let layout: DataLayout;
let logs: EventLogs;
let events: OperationChanges;
let listening: Disposable;
beforeEach(async () => {
  layout = dataLayout(testDirectory("event-logs"));
  await layout.ensure();
  logs = new EventLogs(layout, new Accounts(), wallClock());
  events = new OperationChanges(silentLog);
  listening = endReaders(events, logs);
});
afterEach(async () => {
  listening[Symbol.dispose]();
  expect(logs.counts).toEqual({ feeds: 0, readers: 0 });
  expect(filesOpenBelow(layout.events)).toEqual([]);
  await rm(layout.root, { recursive: true });
});

const ended = (id: OperationId) =>
  events.emit({
    type: "ended",
    operation: { id, accountId: ACCOUNT, kind: "instance" },
    status: "SUCCESS",
    error: null,
    phases: [],
  });

/** All events until the end. */
async function follow(reader: LogReader): Promise<LogEvent[]> {
  using _reader = reader;
  const events: LogEvent[] = [];
  for (;;) {
    const { isOver } = reader;
    const some = await reader.next();
    events.push(...some);
    if (some.length > 0) continue;
    if (isOver) return events;
    await reader.changed(never);
  }
}
const rounds = (events: readonly LogEvent[]) =>
  events.map(({ payload }) => JSON.parse(Buffer.from(payload).toString()).round);

test("readers see the same, from before the start and from later, up to the end and after it", async () => {
  const id = newId();
  const early = follow(logs.read(ACCOUNT, id, -1, false));
  const log = logs.open(id);
  log.append(null, "progress", { round: 0 });
  const all: Promise<LogEvent[]>[] = [early];
  for (let round = 1; round < 200; round++) {
    log.append(null, "progress", { round, fill: "x".repeat(2000) });
    if (round % 20 === 0) all.push(follow(logs.read(ACCOUNT, id, round - 10, false)));
    if (round % 7 === 0) await turns(1);
  }
  await log.end();
  ended(id);
  log[Symbol.dispose]();
  all.push(follow(logs.read(ACCOUNT, id, 150, true)));
  const [first = [], ...others] = await Promise.all(all);
  expect(rounds(first)).toEqual(Array.from({ length: 200 }, (_, round) => round));
  for (const events of others) expect(events).toEqual(first.slice(200 - events.length));
  expect(others.map((events) => events.length)).toEqual([189, 169, 149, 129, 109, 89, 69, 49, 29, 49]);
  expect(await follow(logs.read(ACCOUNT, id, -1, true))).toEqual(first);
});

test("readers at one place share what one of them reads, also far behind the writer", async () => {
  const id = newId();
  const log = logs.open(id);
  const command = log.outputs(1, 10_000_000);
  for (let count = 0; count < 30; count++) await command.write("stdout", Buffer.alloc(65_536, count));
  await log.end();
  // The writer is more than a mebibyte ahead, so that this is read in a thread.
  const readers = Array.from({ length: 20 }, () => logs.read(ACCOUNT, id, -1, false));
  for (let round = 0; round < 3; round++) {
    const [first, ...others] = await Promise.all(readers.map((reader) => reader.next()));
    expect(first?.length).toBeGreaterThan(0);
    for (const events of others) expect(events).toBe(first as typeof events);
  }
  for (const reader of readers) reader[Symbol.dispose]();
  log[Symbol.dispose]();
});

test("readers that begin at different places soon share their reads", async () => {
  const id = newId();
  using log = logs.open(id);
  const command = log.outputs(1, 10_000_000);
  for (let count = 0; count < 20; count++) {
    void command.write("stdout", Buffer.alloc(10_000 + 100 * count, count));
    log.append(0, "progress", { count });
  }
  await log.written();
  using first = logs.read(ACCOUNT, id, -1, false);
  using second = logs.read(ACCOUNT, id, 3, false);
  await Promise.all([first.next(), second.next()]);
  for (let round = 0; round < 2; round++) {
    const [one, other] = await Promise.all([first.next(), second.next()]);
    expect(one.length).toBeGreaterThan(0);
    expect(other).toBe(one);
  }
  await log.end();
});

test("a reader behind one that has read line by line gets many lines at once", async () => {
  const id = newId();
  using log = logs.open(id);
  using near = logs.read(ACCOUNT, id, -1, false);
  using behind = logs.read(ACCOUNT, id, -1, false);
  for (let round = 0; round < 20; round++) {
    log.append(0, "progress", { round });
    await log.written();
    expect(rounds(await near.next())).toEqual([round]);
  }
  expect((await behind.next()).length).toBe(20);
  await log.end();
});

test("followers that are notified of a change take turns, and then have the new events at once", async () => {
  const id = newId();
  using log = logs.open(id);
  log.append(0, "progress", { round: 0 });
  await log.written();
  const readers = Array.from({ length: 50 }, () => logs.read(ACCOUNT, id, -1, false));
  for (const reader of readers) expect(rounds(await reader.next())).toEqual([0]);
  // There is nothing to read, so there is no wait.
  for (const reader of readers) expect(reader.next()).toEqual([]);
  let turn = 0;
  const inTurns = readers.map(async (reader) => {
    await reader.changed(never);
    return { turn, events: rounds((await reader.next()) as LogEvent[]) };
  });
  log.append(0, "progress", { round: 1 });
  await log.written();
  let isDone = false;
  const all = Promise.all(inTurns).finally(() => {
    isDone = true;
  });
  for (; !isDone; turn++) await turns(1);
  const seen = await all;
  for (const { events } of seen) expect(events).toEqual([1]);
  expect(new Set(seen.map((each) => each.turn)).size).toBeGreaterThan(2);
  for (const reader of readers) reader[Symbol.dispose]();
  await log.end();
});

test("a reader that leaves in the middle of a read, or while it waits, leaves nothing behind", async () => {
  const id = newId();
  const log = logs.open(id);
  const command = log.outputs(1, 10_000_000);
  // So far behind the writer, it is read in a thread.
  for (let count = 0; count < 30; count++) await command.write("stdout", Buffer.alloc(65_536, count));
  await log.written();
  const reading = logs.read(ACCOUNT, id, -1, false);
  const step = reading.next();
  reading[Symbol.dispose]();
  reading[Symbol.dispose]();
  expect(logs.counts.readers).toBe(1);
  expect(await step).toEqual([]);
  expect(logs.counts.readers).toBe(0);
  const leaving = new AbortController();
  const waiting = logs.read(ACCOUNT, id, 1000, false);
  expect(await waiting.next()).toEqual([]);
  const changed = waiting.changed(leaving.signal);
  leaving.abort(new Error("gone"));
  expect(await throwing(changed)).toThrow("gone");
  waiting[Symbol.dispose]();
  await log.end();
  log[Symbol.dispose]();
});

test("a reader that leaves when there is more to read ends without a wait", async () => {
  const id = newId();
  using log = logs.open(id);
  const left = new AbortController();
  const reader = logs.read(ACCOUNT, id, -1, false);
  const step = reader.next();
  // More can be read before the step has ended: a wait for a change would not even let others have a turn.
  log.append(null, "progress", { round: 0 });
  await log.written();
  reader[Symbol.dispose]();
  left.abort(new Error("gone"));
  expect(await step).toEqual([]);
  expect(reader.isOver).toBe(true);
  await reader.changed(left.signal);
  expect(await reader.next()).toEqual([]);
  await log.end();
});

test("a reader that is used after it has left does not close the log of the others", async () => {
  const id = newId();
  using log = logs.open(id);
  log.append(0, "progress", { step: "resolving" });
  await log.written();
  using other = logs.read(ACCOUNT, id, -1, false);
  for (const isReading of [true, false]) {
    const reader = logs.read(ACCOUNT, id, -1, false);
    const reading = isReading ? reader.next() : Promise.resolve();
    reader[Symbol.dispose]();
    await reading;
    expect(await reader.next()).toEqual([]);
    expect(await reader.next()).toEqual([]);
    expect(logs.counts).toEqual({ feeds: 1, readers: 1 });
  }
  log.append(0, "progress", { step: "pulling" });
  await log.end();
  const events = [...(await other.next()), ...(await other.next())];
  expect(events.map(({ id: number }) => number)).toEqual([0, 1]);
});

test("an operation without events, and one that is postponed, end their readers", async () => {
  const [none, later] = [newId(), newId()];
  expect(await follow(logs.read(ACCOUNT, none, -1, true))).toEqual([]);
  const waiting = follow(logs.read(ACCOUNT, later, -1, false));
  events.emit({ type: "postponed", operation: { id: later, accountId: ACCOUNT, kind: "instance" } });
  expect(await waiting).toEqual([]);
});

test("a stop ends present and later readers at their positions", async () => {
  const id = newId();
  const log = logs.open(id);
  log.append(null, "progress", { round: 0 });
  const waiting = follow(logs.read(ACCOUNT, id, 1000, false));
  logs[Symbol.dispose]();
  expect(await waiting).toEqual([]);
  expect(await follow(logs.read(ACCOUNT, newId(), -1, false))).toEqual([]);
  log.append(null, "progress", { round: 1 });
  await log.end();
  log[Symbol.dispose]();
  expect(rounds(await follow(logs.read(ACCOUNT, id, -1, true)))).toEqual([0, 1]);
});

test("readers of one log and of one account are bounded, and a log with all of them can be searched", async () => {
  using stack = new DisposableStack();
  const refused = (read: () => LogReader): unknown => {
    try {
      stack.use(read());
    } catch (error) {
      return (error as ApiError).code;
    }
    return null;
  };
  const crowded = newId();
  for (let count = 0; count < READERS_COUNT_MAX; count++) stack.use(logs.read(ACCOUNT, crowded, -1, false));
  expect(refused(() => logs.read("bob" as AccountId, crowded, -1, false))).toBe("too_many_requests");
  expect(await Array.fromAsync(logs.scan(crowded, { first: 0, hasEnded: false, onOutput: () => undefined }))).toEqual(
    [],
  );
  for (let count = READERS_COUNT_MAX; count < ACCOUNT_LIMITS.eventReaders.max; count++) {
    stack.use(logs.read(ACCOUNT, newId(), -1, true));
  }
  expect(refused(() => logs.read(ACCOUNT, newId(), -1, false))).toBe("too_many_requests");
  expect(refused(() => logs.read("bob" as AccountId, newId(), -1, false))).toBeNull();
});
