import { heapStats } from "bun:jsc";
import { expect, test } from "bun:test";
import type { OutputStream } from "../../../../src/domain/output.ts";
import { ProcessTaps, type Tap } from "../../../../src/supervisor/instance/process-taps.ts";
import { packIntegers } from "../../../../src/vm/agent/frames.ts";
import { AgentFrame, HostFrame, Stream } from "../../../../src/vm/agent/protocol.ts";
import { exitPayload, openAgent, SPEC, text } from "../../../support/guests/agent-script.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";
import { turns } from "../../../support/waiting.ts";

const makeTaps = () => new ProcessTaps(() => ({ kept: 0, dropped: 0 }));
/** Bytes of each stream: half of the amount that releases further credit. */
const COUNT = 65_536;
const STREAMS: readonly OutputStream[] = ["stdout", "stderr"];

/** The output of a tap, with adjacent chunks of one stream joined. */
async function readAll(tap: Tap): Promise<[OutputStream, string][]> {
  const runs: [OutputStream, string][] = [];
  for await (const { stream, bytes } of tap.chunks()) add(runs, stream, bytes);
  return runs;
}

function add(runs: [OutputStream, string][], stream: OutputStream, bytes: Uint8Array): void {
  const last = runs.at(-1);
  const hex = Buffer.from(bytes).toString("latin1");
  if (last?.[0] === stream) last[1] += hex;
  else if (hex !== "") runs.push([stream, hex]);
}

test("readers that begin at different times get all later output, in its order", async () => {
  const random = seededRandom(seedOfTests());
  const taps = makeTaps();
  const given: [OutputStream, Uint8Array][] = [];
  const readers: { from: number; read: Promise<[OutputStream, string][]> }[] = [];
  for (let round = 0; round < 400; round++) {
    if (round % 120 === 7) readers.push({ from: round, read: readAll(taps.open()) });
    const stream = STREAMS[random.below(2)] ?? "stdout";
    const chunk = random.bytes(1 + random.below(random.below(10) === 0 ? 70_000 : 40));
    given.push([stream, chunk.slice()]);
    taps.push(stream, chunk);
    chunk.fill(0);
    if (random.below(30) === 0) await turns(1);
  }
  taps.end();
  for (const { from, read } of readers) {
    const expected: [OutputStream, string][] = [];
    for (const [stream, bytes] of given.slice(from)) add(expected, stream, bytes);
    expect(await read).toEqual(expected);
  }
});

test("a process waits until all readers have read everything, or have left", async () => {
  const taps = makeTaps();
  taps.push("stdout", text("early"));
  expect(taps.drained).toBeUndefined();
  const [fast, slow] = [taps.open(), taps.open()];
  taps.push("stdout", text("a"));
  const wait = taps.drained;
  taps.push("stderr", text("b"));
  expect(taps.drained).toBe(wait);
  let isOver = false;
  void wait?.then(() => {
    isOver = true;
  });
  void readAll(fast);
  await turns(2);
  expect(isOver).toBe(false);
  slow[Symbol.dispose]();
  await turns(2);
  expect([isOver, slow.hasLeft, taps.count]).toEqual([true, true, 1]);
  expect(taps.drained).toBeUndefined();
});

test("single bytes of alternating streams cost a stalled reader little more memory than the bytes", async () => {
  const { guest, agent } = openAgent();
  const taps = makeTaps();
  const tap = taps.open();
  const sink = (stream: OutputStream, chunk: Uint8Array) => void taps.push(stream, chunk);
  const run = agent.exec(SPEC, sink, { readers: taps });
  const { session } = await guest.frame(HostFrame.execOpen);
  guest.send(AgentFrame.started, session, packIntegers([32, 1]));
  const chunks = tap.chunks();
  const measure = () => {
    Bun.gc(true);
    const { objectTypeCounts, heapSize, extraMemorySize } = heapStats();
    return {
      promises: objectTypeCounts["Promise"] ?? 0,
      arrays: objectTypeCounts["Uint8Array"] ?? 0,
      bytes: heapSize + extraMemorySize,
    };
  };
  const outputs = [Stream.stdout, Stream.stderr].map((stream) => packIntegers([32, stream], [16, 0x61]).subarray(0, 5));
  const before = measure();
  for (let count = 0; count < COUNT; count++) {
    for (const output of outputs) guest.send(AgentFrame.output, session, output);
    if (count % 64 === 63) await turns(1);
  }
  await turns(2);
  const after = measure();
  expect(after.promises - before.promises).toBeLessThan(200);
  expect(after.arrays - before.arrays).toBeLessThan(400);
  expect(after.bytes - before.bytes).toBeLessThan(16 * 2 * COUNT);
  expect(guest.frames.some(({ type }) => type === HostFrame.window)).toBe(false);
  let count = 0;
  guest.send(AgentFrame.exit, session, exitPayload(0));
  await run.exit;
  taps.end();
  for await (const { bytes } of chunks) count += bytes.byteLength;
  expect(count).toBe(2 * COUNT);
});

test("a released process does not wait; its reader gets the waiting output, and the size of the rest", async () => {
  const taps = makeTaps();
  using tap = taps.open();
  taps.push("stdout", text("taken late"));
  let isOver = false;
  const released = taps.drained?.then(() => {
    isOver = true;
  });
  await turns(2);
  expect(isOver).toBe(false);
  taps.letGo();
  await released;
  using late = taps.open();
  taps.push("stdout", text("too late"));
  expect(taps.drained).toBeUndefined();
  taps.end();
  expect(await readAll(tap)).toEqual([["stdout", "taken late"]]);
  expect(await readAll(late)).toEqual([]);
  for (const { missed } of [tap, late]) expect(missed).toEqual({ stdout: 8, stderr: 0 });
});

test("readers at different places are continued from a record, each without losing or repeating a byte", async () => {
  const random = seededRandom(seedOfTests());
  for (let round = 0; round < 50; round++) {
    const taps = makeTaps();
    const given: [OutputStream, Uint8Array][] = [];
    const push = (to: ProcessTaps): void => {
      const stream = STREAMS[random.below(2)] ?? "stdout";
      const chunk = random.bytes(1 + random.below(random.below(10) === 0 ? 9000 : 40));
      given.push([stream, chunk]);
      to.push(stream, chunk);
    };
    const readers = await openReaders(taps, { random, given, push: () => push(taps) });
    const record = JSON.parse(JSON.stringify(taps.record()));
    const resumed = new ProcessTaps(() => ({ kept: 0, dropped: 0 }), record);
    expect(resumed.count).toBe(readers.length);
    const wait = resumed.drained;
    expect(wait === undefined).toBe(readers.every(({ output, from }) => bytesOf(output) === sizeFrom(given, from)));
    const rests = resumed.opened.map((tap) => readAll(tap));
    push(resumed);
    resumed.end();
    for (const [index, { from, output }] of readers.entries()) {
      const expected: [OutputStream, string][] = [];
      for (const [stream, bytes] of given.slice(from)) add(expected, stream, bytes);
      for (const [stream, hex] of (await rests[index]) ?? []) add(output, stream, Buffer.from(hex, "latin1"));
      expect(output).toEqual(expected);
    }
    await wait;
    expect(resumed.drained).toBeUndefined();
  }
});

/** Opens up to four taps between chunks of output; each reader takes some of its chunks. */
async function openReaders(
  taps: ProcessTaps,
  { random, given, push }: { random: ReturnType<typeof seededRandom>; given: readonly unknown[]; push: () => unknown },
) {
  const readers = [];
  for (let index = 0; index < 1 + random.below(4); index++) {
    const tap = taps.open();
    const from = given.length;
    for (let count = random.below(6); count > 0; count--) push();
    readers.push({ from, tap, output: [] as [OutputStream, string][] });
  }
  for (const { tap, output } of readers) {
    const chunks = tap.chunks();
    // Chunks are available as long as the sizes say so.
    for (let count = random.below(4); count > 0 && tap.waiting().length > 0; count--) {
      const { value } = await chunks.next();
      if (value !== undefined) add(output, value.stream, value.bytes);
    }
  }
  return readers;
}

const bytesOf = (runs: readonly [OutputStream, string][]) => runs.reduce((sum, [, hex]) => sum + hex.length, 0);
const sizeFrom = (given: readonly [OutputStream, Uint8Array][], from: number) =>
  given.slice(from).reduce((sum, [, bytes]) => sum + bytes.byteLength, 0);

test("a record has the sizes before and after each tap, and that the process waits for no reader", async () => {
  const taps = new ProcessTaps((stream) => ({ kept: stream === "stdout" ? 7 : 0, dropped: 1 }));
  using tap = taps.open();
  taps.push("stdout", text("waits"));
  taps.letGo();
  taps.push("stderr", text("missed"));
  const resumed = new ProcessTaps(() => ({ kept: 99, dropped: 99 }), JSON.parse(JSON.stringify(taps.record())));
  const [other] = resumed.opened;
  expect(other).toMatchObject({ before: tap.before, missed: { stdout: 0, stderr: 6 } });
  resumed.push("stdout", text("missed, too"));
  expect(resumed.drained).toBeUndefined();
  resumed.end();
  expect(await readAll(other as Tap)).toEqual([["stdout", "waits"]]);
  expect(other?.missed).toEqual({ stdout: 11, stderr: 6 });
});
