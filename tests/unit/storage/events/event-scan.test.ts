import { afterEach, beforeEach, expect, test } from "bun:test";
import { appendFile, rm } from "node:fs/promises";
import { join } from "node:path";
import type { LogEvent } from "../../../../src/domain/log-event.ts";
import { EventFile } from "../../../../src/storage/events/event-file.ts";
import { FIRST_POSITION } from "../../../../src/storage/events/position.ts";
import { type OutputVisitor, scanEvents } from "../../../../src/storage/events/scan.ts";
import { EventWriter } from "../../../../src/storage/events/writer.ts";
import { allEvents } from "../../../support/events.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";
import { turns } from "../../../support/waiting.ts";

let directory: string;
let path: string;
beforeEach(() => {
  directory = testDirectory("scan");
  path = join(directory, "log");
});
afterEach(() => rm(directory, { recursive: true }));

const isOutput = ({ type }: LogEvent) => type === "stdout" || type === "stderr";

/** The result of a search for an event that readers see. */
const searched = (event: LogEvent) => {
  const { id, spid, type, payload } = event;
  return isOutput(event)
    ? { id, spid, type, bytes: payload.byteLength }
    : { ...event, payload: Buffer.from(payload).toString() };
};

interface ScanResult {
  readonly id: number;
  readonly offset: number;
}

async function scan(file: EventFile, from = FIRST_POSITION, endBytes = file.sizeBytes): Promise<ScanResult[]> {
  const results: ScanResult[] = [];
  const onOutput: OutputVisitor = (spid, type, bytes, id, offset) => {
    const output = { id, spid, type, bytes, offset };
    results.push(output);
  };
  for await (const events of scanEvents(file, from, endBytes, onOutput)) {
    results.push(...events.map((event) => ({ ...event, payload: Buffer.from(event.payload).toString() })));
  }
  return results.sort((one, other) => one.id - other.id);
}

/** A log of outputs and of other events, of all sizes. */
async function write(): Promise<void> {
  const random = seededRandom(seedOfTests());
  const part = () => random.below(1000) / 1000;
  const log = new EventWriter({ path, now: () => 1_700_000_000_000_000_000n });
  const outputs = [1, 2, 3].map((spid) => log.outputs(spid, 10_000_000));
  for (let round = 0; round < 400; round++) {
    const bytes = Math.floor(part() ** 4 * 60_000);
    void outputs[round % 3]?.write(part() < 0.5 ? "stdout" : "stderr", Buffer.alloc(bytes, round));
    if (part() < 0.6) log.append(round % 4, "progress", { round, fill: "x".repeat(Math.floor(part() ** 3 * 30_000)) });
    if (round % 5 === 0) await turns(1);
  }
  await log.end();
  log.file?.[Symbol.dispose]();
}

test("a search finds what readers see, from any event on, without the content of outputs", async () => {
  await write();
  using file = EventFile.open(path) as EventFile;
  const all = (await Array.fromAsync(allEvents(file))).map(searched);
  const results = await scan(file);
  expect(results.map(({ offset: _, ...event }) => event)).toEqual(all);
  expect(results.length).toBeGreaterThan(400);
  for (const at of [1, 17, 300, results.length - 1]) {
    const { id, offset } = results[at] as (typeof results)[number];
    expect(await scan(file, { id, offset })).toEqual(results.slice(at));
    // An event that begins before the end, and ends after it, is not complete yet.
    expect(await scan(file, FIRST_POSITION, offset + 20)).toEqual(results.slice(0, at));
  }
});

test("a search ends where the log does, and finds nothing in another file", async () => {
  await write();
  {
    using file = EventFile.open(path) as EventFile;
    const count = (await scan(file)).length;
    await appendFile(path, Buffer.alloc(100_000, 7));
    expect((await scan(file)).length).toBe(count);
  }
  await Bun.write(path, Buffer.alloc(100_000));
  using other = EventFile.open(path) as EventFile;
  expect(await scan(other)).toEqual([]);
  await Bun.write(path, "x");
  using short = EventFile.open(path) as EventFile;
  expect(await scan(short)).toEqual([]);
});
