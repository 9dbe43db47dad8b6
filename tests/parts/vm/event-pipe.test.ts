/** The named pipe for the events of a monitor. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, rmSync, statSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createEventPipe, EventReader } from "../../../src/vm/cloud-hypervisor/event-pipe.ts";
import { until } from "../../support/waiting.ts";

const PIPE_BYTES = 65_536;

let home: string;
beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), "events-"));
});
afterEach(() => rmSync(home, { recursive: true }));

const fdsCount = () => readdirSync("/proc/self/fd").length;

function collect(reader: EventReader): { text: string; ended: boolean } {
  const read = { text: "", ended: false };
  reader.onData((chunk) => {
    if (chunk === null) read.ended = true;
    else read.text += Buffer.from(chunk).toString();
  });
  return read;
}

/** Writes until the pipe is full; returns the number of bytes. */
function fill(fd: number): number {
  for (let written = 0; ; written += 4096) {
    try {
      writeSync(fd, Buffer.alloc(4096, "x"));
    } catch (error) {
      expect((error as NodeJS.ErrnoException).code).toBe("EAGAIN");
      return written;
    }
  }
}

test("events wait for a reader and for the next one, and the end of the monitor ends them", async () => {
  using monitor = new DisposableStack();
  const fd = await createEventPipe(monitor, home);
  writeSync(fd, "one\n");
  {
    await using first = EventReader.open(home);
    const read = collect(first);
    await until("it is read", () => read.text === "one\n");
    writeSync(fd, "two\n");
    await until("it is read", () => read.text === "one\ntwo\n");
    expect(read.ended).toBe(false);
  }
  writeSync(fd, "three\n");
  await using second = EventReader.open(home);
  const read = collect(second);
  await until("it is read", () => read.text === "three\n");
  monitor.dispose();
  await until("it has ended", () => read.ended);
});

test("a monitor that no process reads cannot fill more than the pipe, and is not stopped by it", async () => {
  using monitor = new DisposableStack();
  const fd = await createEventPipe(monitor, home);
  expect(fill(fd)).toBe(PIPE_BYTES);
  const events = join(home, "run/events");
  expect([statSync(events).size, statSync(events).blocks]).toEqual([0, 0]);
  await using reader = EventReader.open(home);
  const read = collect(reader);
  await until("it is read", () => read.text.length === PIPE_BYTES);
  writeSync(fd, "more");
  await until("the rest is read", () => read.text.endsWith("more"));
});

test("a reader that is disposed of closes its files, and says nothing more", async () => {
  using monitor = new DisposableStack();
  const fd = await createEventPipe(monitor, home);
  const before = fdsCount();
  const reads: { text: string; ended: boolean }[] = [];
  for (let round = 0; round < 20; round++) {
    await using reader = EventReader.open(home);
    reads.push(collect(reader));
    writeSync(fd, "x");
    await until("it is read", () => reads.at(-1)?.text === "x");
  }
  await until("the files are closed", () => fdsCount() <= before);
  expect(reads.filter(({ ended }) => ended)).toEqual([]);
});
