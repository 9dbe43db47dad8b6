import { heapStats } from "bun:jsc";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { readFileSync, statSync } from "node:fs";
import { appendFile, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { LogEvent } from "../../../../src/domain/log-event.ts";
import type { OutputStream } from "../../../../src/domain/output.ts";
import { EventFile } from "../../../../src/storage/events/event-file.ts";
import type { ProcessOutputs } from "../../../../src/storage/events/process-outputs.ts";
import { EventReader } from "../../../../src/storage/events/reader.ts";
import { EventWriter, type EventWriterOptions } from "../../../../src/storage/events/writer.ts";
import { WINDOW_BYTES_INITIAL } from "../../../../src/vm/agent/protocol.ts";
import { allEvents } from "../../../support/events.ts";
import { throwing } from "../../../support/failures.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";
import { turns } from "../../../support/waiting.ts";

let directory: string;
let path: string;
let time = 0n;
beforeEach(() => {
  directory = testDirectory("events");
  path = join(directory, "log");
  time = 1_700_000_000_000_000_000n;
});
afterEach(() => rm(directory, { recursive: true }));

const writer = (more: Partial<EventWriterOptions> = {}) => new EventWriter({ path, now: () => ++time, ...more });
async function read(): Promise<LogEvent[]> {
  using file = EventFile.open(path);
  return file === null ? [] : await Array.fromAsync(allEvents(file));
}
const textOf = (events: readonly LogEvent[], spid: number, type: string) =>
  Buffer.concat(events.filter((event) => event.spid === spid && event.type === type).map(({ payload }) => payload));
const dataOf = (events: readonly LogEvent[], type: string) =>
  events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(Buffer.from(payload).toString()));
const SHUTDOWN = { stopped_at: "x", reason: "job_complete" } as const;

async function end(log: EventWriter): Promise<void> {
  await log.end();
  log.file?.[Symbol.dispose]();
}

/** Writes output as a process can: the next half of its window waits until this one is written. */
function withinCredit(outputs: ProcessOutputs): (stream: OutputStream, chunk: Uint8Array) => Promise<void> {
  let leftBytes = WINDOW_BYTES_INITIAL / 2;
  return async (stream, chunk) => {
    const written = outputs.write(stream, chunk);
    leftBytes -= chunk.byteLength;
    if (leftBytes > 0) return;
    await written;
    leftBytes = WINDOW_BYTES_INITIAL / 2;
  };
}

describe("an event log", () => {
  test("returns the written events in their order, with the time and the process of each", async () => {
    const log = writer();
    log.append(null, "progress", { step: "pulling" });
    const command = log.outputs(1, 100);
    void command.write("stdout", Buffer.from("ö\0\xff", "latin1"));
    void command.write("stderr", Buffer.from("oops"));
    log.append(0, "shutdown", SHUTDOWN);
    await end(log);
    const events = await read();
    expect(events.map(({ id, spid, type, timeNs }) => [id, spid, type, timeNs])).toEqual([
      [0, null, "progress", 1_700_000_000_000_000_001n],
      [1, 1, "stdout", 1_700_000_000_000_000_002n],
      [2, 1, "stderr", 1_700_000_000_000_000_003n],
      [3, 0, "shutdown", 1_700_000_000_000_000_004n],
    ]);
    expect(textOf(events, 1, "stdout")).toEqual(Buffer.from("ö\0\xff", "latin1"));
    expect(dataOf(events, "progress")).toEqual([{ step: "pulling" }]);
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  test("shows a short output in the turn of the event loop in which it came", async () => {
    const log = writer();
    const command = log.outputs(1, 100_000);
    log.append(0, "progress", { step: "the first event creates the file" });
    await log.written();
    void command.write("stdout", Buffer.from("a line\n"));
    // Microtasks only: no turn begins meanwhile, and no thread can report.
    for (let count = 0; count < 20; count++) await undefined;
    expect(log.queuedBytes).toBe(0);
    expect(textOf(await read(), 1, "stdout").toString()).toBe("a line\n");
    await end(log);
  });

  test("has no file before its first event, and none without one", async () => {
    await end(writer());
    expect(await read()).toEqual([]);
    expect(EventFile.open(path)).toBeNull();
  });

  test("stores output that arrives together as one record of at most 16 KiB, and copies it", async () => {
    const log = writer();
    const command = log.outputs(1, 1_000_000);
    const piece = Buffer.from("ab");
    for (let count = 0; count < 20_000; count++) void command.write("stdout", piece);
    piece.fill("x");
    await end(log);
    const events = await read();
    expect(Math.max(...events.map(({ payload }) => payload.byteLength))).toBe(16_384);
    expect(events.length).toBeLessThan(10);
    expect(textOf(events, 1, "stdout").toString()).toBe("ab".repeat(20_000));
  });

  test("stores the output of a stream up to its limit, in chunks of any size, and reports the rest once", async () => {
    const bytes = Buffer.from(Array.from({ length: 20_000 }, (_, index) => index % 251));
    for (const limit of [0, 1, 4095, 16_384, 16_385, 19_999, 20_000, 30_000]) {
      for (const pieceBytes of [1, 7, 4096, 30_000]) {
        const log = writer();
        const command = log.outputs(1, limit);
        for (let at = 0; at < bytes.length; at += pieceBytes) {
          void command.write("stdout", bytes.subarray(at, at + pieceBytes));
        }
        void command.write("stderr", Buffer.alloc(limit));
        command.end();
        await end(log);
        const events = await read();
        const [kept, dropped] = [Math.min(limit, 20_000), Math.max(0, 20_000 - limit)];
        expect(textOf(events, 1, "stdout").equals(bytes.subarray(0, limit))).toBe(true);
        expect(command.bytes("stdout")).toEqual({ kept, dropped });
        const truncation = { stream: "stdout", bytes_emitted: kept, bytes_dropped: dropped };
        expect(dataOf(events, "truncated")).toEqual(dropped === 0 ? [] : [truncation]);
        await rm(path, { force: true });
      }
    }
  });

  test("has a total limit, which does not cut the command's outputs", async () => {
    const log = writer({ limitBytes: 300_000 });
    const command = log.outputs(1, 50_000, true);
    const [first, second] = [log.outputs(2, 1_000_000), log.outputs(3, 1_000_000)];
    for (let count = 0; count < 100; count++) {
      void first.write("stdout", Buffer.alloc(5000, "a"));
      void second.write("stderr", Buffer.alloc(5000, "b"));
    }
    void command.write("stdout", Buffer.alloc(60_000, "c"));
    void command.write("stderr", Buffer.alloc(60_000, "d"));
    for (const process of [first, second, command]) process.end();
    log.append(0, "shutdown", SHUTDOWN);
    await end(log);
    const events = await read();
    expect(statSync(path).size).toBeLessThan(301_000);
    const [cap, ...more] = dataOf(events, "size_cap");
    expect([cap.limit_bytes, more]).toEqual([300_000, []]);
    const at = events.findIndex(({ type }) => type === "size_cap");
    const behind = events.slice(at + 1);
    expect(behind.filter(({ spid, type }) => spid !== 1 && /^std/.test(type))).toEqual([]);
    expect(textOf(events, 1, "stdout").byteLength).toBe(50_000);
    expect(textOf(events, 1, "stderr").byteLength).toBe(50_000);
    const kept = textOf(events, 2, "stdout").byteLength;
    expect(dataOf(events, "truncated")).toContainEqual({
      stream: "stdout",
      bytes_emitted: kept,
      bytes_dropped: 500_000 - kept,
    });
    expect(events.at(-1)?.type).toBe("shutdown");
  });

  test("of a million single bytes takes little memory and few records", async () => {
    const log = writer();
    const command = log.outputs(1, 10_000_000);
    const before = heapStats().objectTypeCounts["Uint8Array"] ?? 0;
    const byte = Uint8Array.of(65);
    const write = withinCredit(command);
    for (let count = 0; count < 1_000_000; count++) await write("stdout", byte);
    Bun.gc(true);
    expect((heapStats().objectTypeCounts["Uint8Array"] ?? 0) - before).toBeLessThan(200);
    await end(log);
    const events = await read();
    expect(textOf(events, 1, "stdout").byteLength).toBe(1_000_000);
    expect(statSync(path).size).toBeLessThan(4_000_000);
  });

  test("of single bytes of alternating streams has few records, and the order of each stream", async () => {
    const log = writer();
    const command = log.outputs(1, 10_000_000, true);
    const other = log.outputs(2, 10_000_000);
    const streams = ["stdout", "stderr"] as const;
    const write = withinCredit(command);
    for (let count = 0; count < 300_000; count++) {
      for (const stream of streams) await write(stream, Uint8Array.of(count % 251));
      if (count % 10 === 0) void other.write("stdout", Uint8Array.of(count % 7));
    }
    command.end();
    log.append(1, "stdin", { bytes: 1 });
    void command.write("stderr", Buffer.from("behind"));
    await end(log);
    const events = await read();
    expect(statSync(path).size).toBeLessThan(4_000_000);
    const expected = Buffer.from(Array.from({ length: 300_000 }, (_, count) => count % 251));
    expect(textOf(events, 1, "stdout").equals(expected)).toBe(true);
    expect(textOf(events, 1, "stderr").subarray(0, 300_000).equals(expected)).toBe(true);
    expect(textOf(events, 2, "stdout").byteLength).toBe(30_000);
    // Appended events follow the earlier output.
    expect(events.slice(-2).map(({ type, payload }) => [type, payload.byteLength])).toEqual([
      ["stdin", 11],
      ["stderr", 6],
    ]);
  });

  test("has its limit also for a command whose records have more header than output", async () => {
    const log = writer({ limitBytes: 600_000 });
    const command = log.outputs(1, 50_000, true);
    for (let count = 0; count < 50_000; count++) {
      for (const stream of ["stdout", "stderr"] as const) void command.write(stream, Uint8Array.of(65));
    }
    command.end();
    await end(log);
    expect(statSync(path).size).toBeLessThan(601_000);
    const events = await read();
    for (const stream of ["stdout", "stderr"] as const) {
      const { kept, dropped } = command.bytes(stream);
      expect(kept + dropped).toBe(50_000);
      expect(textOf(events, 1, stream).byteLength).toBe(kept);
      expect(kept).toBeGreaterThan(8000);
      expect(dataOf(events, "truncated")).toContainEqual({ stream, bytes_emitted: kept, bytes_dropped: dropped });
    }
  });

  test("can be read while it grows, from any event on", async () => {
    const changes: number[] = [];
    const log = writer({ onChange: () => changes.push(log.writtenBytes) });
    const command = log.outputs(1, 10_000_000);
    const random = seededRandom(seedOfTests());
    const given: Buffer[] = [];
    const reader = async (since: number) => {
      const matches: LogEvent[] = [];
      let own: EventReader | null = null;
      return async () => {
        if (log.file === null) return matches;
        own ??= new EventReader(log.file, log.index.before(since + 1));
        for (let some = own.nextNow(log.writtenBytes); some.length > 0; some = await own.next(log.writtenBytes)) {
          matches.push(...some.filter(({ id }) => id > since));
        }
        return matches;
      };
    };
    const readers = [{ since: -1, look: await reader(-1) }];
    for (let round = 0; round < 60; round++) {
      const piece = Buffer.from(random.bytes(random.below(30_000)));
      given.push(piece);
      await command.write("stdout", piece);
      if (random.below(2) === 0) log.append(0, "progress", { round });
      if (round % 10 === 5) {
        const since = random.below(round);
        readers.push({ since, look: await reader(since) });
      }
      for (const { look } of readers) await look();
      while (round % 3 === 0 && log.queuedBytes > 0) await turns(1);
    }
    await log.end();
    const matches = await Promise.all(readers.map(({ look }) => look()));
    log.file?.[Symbol.dispose]();
    const events = await read();
    expect(textOf(events, 1, "stdout").equals(Buffer.concat(given))).toBe(true);
    for (const [at, { since }] of readers.entries()) expect(matches[at]).toEqual(events.slice(since + 1));
    expect(changes.length).toBeGreaterThan(1);
  });

  test("is read in pieces of a few events, which end at the same events for every reader", async () => {
    const log = writer();
    const command = log.outputs(1, 10_000);
    for (let round = 0; round < 5000; round++) {
      for (const stream of ["stdout", "stderr"] as const) void command.write(stream, Uint8Array.of(65));
    }
    await log.end();
    const file = log.file as EventFile;
    const endsFrom = (since: number) => {
      const reader = new EventReader(file, log.index.before(since + 1));
      const ends: number[] = [];
      while (reader.nextNow(log.writtenBytes).length > 0) ends.push(reader.position.id);
      return ends;
    };
    const ends = endsFrom(-1);
    expect(Math.max(...ends.map((end, at) => end - (ends[at - 1] ?? 0)))).toBeLessThanOrEqual(2048);
    expect(ends.at(-1)).toBe(10_000);
    const later = endsFrom(2900);
    expect(ends.slice(-later.length + 1)).toEqual(later.slice(1));
    file[Symbol.dispose]();
  });

  test("that cannot be written reports that, and its written part stays", async () => {
    const log = writer();
    log.append(0, "progress", { a: 1 });
    while (log.queuedBytes > 0) await turns(1);
    log.file?.[Symbol.dispose]();
    const command = log.outputs(1, 10_000_000);
    const wait = command.write("stdout", Buffer.alloc(2_000_000));
    await wait;
    expect(log.failed.aborted).toBe(true);
    expect(command.write("stdout", Buffer.alloc(2_000_000))).toBeUndefined();
    log.append(0, "shutdown", SHUTDOWN);
    expect(await throwing(log.end())).toThrow("EBADF");
    expect((await read()).map(({ type }) => type)).toEqual(["progress"]);
  });

  test("ends before late events", async () => {
    const log = writer();
    log.append(0, "progress", { a: 1 });
    const ended = log.end();
    log.append(0, "shutdown", SHUTDOWN);
    void log.outputs(1, 10).write("stdout", Buffer.from("late"));
    await ended;
    log.file?.[Symbol.dispose]();
    expect((await read()).map(({ type }) => type)).toEqual(["progress"]);
  });
});

describe("a damaged log", () => {
  async function sample(): Promise<{ events: LogEvent[]; bytes: Buffer }> {
    const log = writer();
    const command = log.outputs(1, 1_000_000);
    for (let round = 0; round < 30; round++) {
      log.append(0, "progress", { round, text: "x".repeat(round * 7) });
      void command.write(round % 3 === 0 ? "stderr" : "stdout", Buffer.alloc(round * 331 + 1, round));
    }
    await end(log);
    return { events: await read(), bytes: readFileSync(path) };
  }
  const isPrefix = (part: readonly LogEvent[], whole: readonly LogEvent[]) =>
    expect(part).toEqual(whole.slice(0, part.length));

  test("is cut at the first record that is not whole", async () => {
    const { events, bytes } = await sample();
    const random = seededRandom(seedOfTests());
    const lengths = [0, 1, 15, 16, 17, 43, 44, ...Array.from({ length: 100 }, () => random.below(bytes.byteLength))];
    for (const length of lengths) {
      await writeFile(path, bytes.subarray(0, length));
      const intact = await read();
      isPrefix(intact, events);
      const foundBytes = intact.reduce((sum, { payload }) => sum + 28 + payload.byteLength, 16);
      const next = events[intact.length];
      if (next !== undefined) expect(length).toBeLessThan(foundBytes + 28 + next.payload.byteLength);
    }
  });

  test("returns only written events, for any change of its bytes", async () => {
    const { events, bytes } = await sample();
    const random = seededRandom(seedOfTests() + 1);
    for (let round = 0; round < 400; round++) {
      const damaged = Buffer.from(bytes);
      const kind = random.below(4);
      const at = random.below(damaged.byteLength);
      if (kind === 0) damaged[at] = (damaged[at] ?? 0) ^ (1 << random.below(8));
      else if (kind === 1) damaged.set(random.bytes(Math.min(64, damaged.byteLength - at)), at);
      else if (kind === 2) damaged.fill(0, at);
      else damaged.copy(damaged, at, random.below(damaged.byteLength));
      await writeFile(path, damaged);
      isPrefix(await read(), events);
    }
  });

  test("with bytes after its last record is unchanged", async () => {
    const { events, bytes } = await sample();
    const random = seededRandom(seedOfTests() + 2);
    for (const tail of [Buffer.alloc(100), Buffer.alloc(70_000, 0xff), Buffer.from(random.bytes(200)), bytes]) {
      await truncate(path, bytes.byteLength);
      await appendFile(path, tail);
      expect(await read()).toEqual(events);
    }
  });
});
