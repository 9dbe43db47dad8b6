/** When a log reports that output is written: the agent of its process keeps the output until then. */
import { afterEach, beforeEach, expect, spyOn, test } from "bun:test";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { EventFile } from "../../../../src/storage/events/event-file.ts";
import { EventWriter } from "../../../../src/storage/events/writer.ts";
import { allEvents } from "../../../support/events.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";
import { turns, until } from "../../../support/waiting.ts";

let directory: string;
let path: string;
beforeEach(() => {
  directory = testDirectory("events");
  path = join(directory, "log");
});
afterEach(() => rm(directory, { recursive: true }));

/** Bytes of standard output that a reader of the file gets now. */
async function stdoutBytes(): Promise<number> {
  using file = EventFile.open(path);
  const events = file === null ? [] : await Array.fromAsync(allEvents(file));
  return events.reduce((sum, { type, payload }) => sum + (type === "stdout" ? payload.byteLength : 0), 0);
}

test("reports when output is written, once for all that is written together", async () => {
  const log = new EventWriter({ path, now: () => 1n });
  const command = log.outputs(1, 3 * 65_536);
  const chunk = Buffer.alloc(65_536, "a");
  const [first, second] = [command.write("stdout", chunk), command.write("stderr", chunk)];
  expect(first).toBeInstanceOf(Promise);
  expect(second).toBe(first as Promise<void>);
  expect(log.writtenBytes).toBe(0);
  await first;
  expect(log.queuedBytes).toBe(0);
  expect(await stdoutBytes()).toBe(chunk.byteLength);
  const third = command.write("stdout", Buffer.alloc(200_000, "b"));
  expect(third).not.toBe(first as Promise<void>);
  // Dropped output is not waited for.
  expect(command.write("stdout", chunk)).toBeUndefined();
  await third;
  await log.end();
  expect(await stdoutBytes()).toBe(3 * 65_536);
  expect(command.write("stderr", chunk)).toBeUndefined();
});

test("reports output of a long write with that write, and later output with the next", async () => {
  const stalled = Promise.withResolvers<void>();
  const write = EventFile.prototype.write;
  let writesCount = 0;
  using _writes = spyOn(EventFile.prototype, "write").mockImplementation(async function (this: EventFile, ...args) {
    writesCount += 1;
    await stalled.promise;
    await write.apply(this, args);
  });
  const log = new EventWriter({ path, now: () => 1n });
  const command = log.outputs(1, 10_000_000);
  const reported: number[] = [];
  const report = (number: number, wait: Promise<void> | undefined) => void wait?.then(() => reported.push(number));
  report(1, command.write("stdout", Buffer.alloc(100_000)));
  await until("the write begins", () => writesCount === 1);
  report(2, command.write("stderr", Uint8Array.of(1)));
  report(3, command.write("stdout", Uint8Array.of(2)));
  let isWritten = false;
  void log.written().then(() => {
    isWritten = true;
  });
  await turns();
  expect([reported, isWritten, log.writtenBytes]).toEqual([[], false, 0]);
  stalled.resolve();
  await log.end();
  expect([reported, isWritten]).toEqual([[1, 2, 3], true]);
});

test("does not wait for more output when its process may have used up its credit", async () => {
  const log = new EventWriter({ path, now: () => 1n });
  const command = log.outputs(1, 10_000_000);
  const streams = ["stdout", "stderr"] as const;
  for (let count = 0; count < 66_000; count++) void command.write(streams[count % 2] ?? "stdout", Uint8Array.of(65));
  await log.written();
  using _timers = spyOn(globalThis, "setTimeout").mockImplementation((() => 0) as never);
  let isWritten = false;
  for (let count = 1; count <= 8; count++) {
    const pending = command.write("stdout", Buffer.alloc(4096, "a"));
    if (count === 8) void pending?.then(() => (isWritten = true));
    await turns(1);
  }
  await turns();
  expect(isWritten).toBe(true);
  await log.end();
});
