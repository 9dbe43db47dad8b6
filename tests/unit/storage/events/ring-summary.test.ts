import { afterEach, beforeEach, expect, test } from "bun:test";
import { readdirSync, statSync, writeFileSync } from "node:fs";
import { rm, truncate } from "node:fs/promises";
import { join } from "node:path";
import { Accounts } from "../../../../src/domain/account/accounts.ts";
import type { AccountId, LogId } from "../../../../src/domain/ids.ts";
import type { LogEvent, LogEventData } from "../../../../src/domain/log-event.ts";
import type { OutputStream } from "../../../../src/domain/output.ts";
import { eventLogPath } from "../../../../src/storage/events/event-file.ts";
import { EventLogs, type RingLog } from "../../../../src/storage/events/event-logs.ts";
import type { LogReader } from "../../../../src/storage/events/log-reader.ts";
import { type DataLayout, dataLayout } from "../../../../src/storage/layout.ts";
import { wallClock } from "../../../../src/system/wall-clock.ts";
import { filesOpenBelow, testDirectory } from "../../../support/images/layer-files.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";

const ACCOUNT = "alice" as AccountId;
const RING_BYTES = 1_048_576;
const ID = Bun.randomUUIDv7() as LogId;
const UNLIMITED = Number.POSITIVE_INFINITY;

let layout: DataLayout;
beforeEach(async () => {
  layout = dataLayout(testDirectory("ring-summary"));
  await layout.ensure();
});
afterEach(async () => {
  expect(filesOpenBelow(layout.events)).toEqual([]);
  await rm(layout.root, { recursive: true });
});

const directory = () => eventLogPath(layout, ID);
const segments = () =>
  readdirSync(directory())
    .filter((name) => name !== "note")
    .sort();
const spawn = (pid: number): LogEventData["spawn"] => ({
  ...{ pid, command: "sh", args: [], cwd: "/", uid: 0, gid: 0, timeout: null, truncate_output_at: null },
});
const exit = (pid: number): LogEventData["exit"] => ({
  ...{ pid, exit_code: 0, signal: null, timed_out: false, oom_killed: false, core_dump: false },
  ...{ duration_ms: 1, cpu_time_ms: 1, memory_bytes: 1, resources: null },
});

/** Opens the ring as another process does. */
async function during(work: (log: RingLog, logs: EventLogs) => Promise<void> | void): Promise<void> {
  const logs = new EventLogs(layout, new Accounts(), wallClock(), RING_BYTES);
  using log = await logs.openRing(ID);
  try {
    await work(log, logs);
  } finally {
    await log.end();
  }
}

/** All events that were ever in the ring, by their ids. */
class Model {
  #events: Pick<LogEvent, "id" | "spid" | "type" | "payload">[] = [];

  get lastId(): number {
    return this.#events.at(-1)?.id ?? -1;
  }

  async follow(reader: LogReader): Promise<void> {
    for (let some = await reader.next(); some.length > 0; some = await reader.next()) this.#events.push(...some);
  }

  cut(nextId: number): void {
    this.#events = this.#events.filter(({ id }) => id < nextId);
  }

  running() {
    const running = new Map<number, { start: number | null; keptBytes: Record<OutputStream, number> }>();
    for (const { id, spid, type, payload } of this.#events) {
      if (spid === null) continue;
      const entry = running.get(spid) ?? { start: null, keptBytes: { stdout: 0, stderr: 0 } };
      if (type === "stdout" || type === "stderr") entry.keptBytes[type] += payload.byteLength;
      if (type === "spawn") entry.start = id;
      running.set(spid, entry);
      if (type === "exit") running.delete(spid);
    }
    return running;
  }
}
const seenIn = ({ summary }: RingLog) =>
  new Map(
    [...summary.running].map(([spid, { start, keptBytes }]) => [spid, { start: start?.event ?? null, keptBytes }]),
  );

test("a ring knows the sizes of all outputs of running processes, also of those whose first events it has dropped", async () => {
  const random = seededRandom(seedOfTests());
  const model = new Model();
  let spidLast = 1;
  const live = new Set<number>();
  for (let opening = 0; opening < 25; opening++) {
    await during(async (log, logs) => {
      model.cut(log.nextId);
      using reader = logs.read(ACCOUNT, ID, model.lastId, false);
      expect(seenIn(log)).toEqual(model.running());
      const outputs = new Map([...live].map((spid) => [spid, log.outputs(spid, UNLIMITED)]));
      for (let round = 0; round < 60; round++) {
        if (live.size < 8) {
          spidLast += 1;
          log.append(spidLast, "spawn", spawn(spidLast));
          live.add(spidLast);
          outputs.set(spidLast, log.outputs(spidLast, UNLIMITED));
        }
        for (const output of outputs.values()) {
          void output.write(random.below(2) === 0 ? "stdout" : "stderr", Buffer.alloc(random.below(6000)));
        }
        // The first ones run for ever.
        const [, , , ended] = [...live];
        if (random.below(4) === 0 && ended !== undefined) {
          log.append(ended, "exit", exit(ended));
          live.delete(ended);
          outputs.delete(ended);
        }
        await log.written();
        await model.follow(reader);
      }
      await model.follow(reader);
      expect(seenIn(log)).toEqual(model.running());
    });
    // A kill in the middle of a write.
    const last = join(directory(), segments().at(-1) ?? "");
    const { size } = statSync(last);
    if (opening % 2 === 0) await truncate(last, Math.max(0, size - random.below(20_000)));
  }
  expect(model.running().get(2)?.start).toBe(0);
  const [first = ""] = segments();
  expect(Number(first.slice(17))).toBeGreaterThan(0);
});

test("a note that is damaged, or of dropped segments, is not used", async () => {
  const bytes = Buffer.alloc(16_000);
  const write = (log: RingLog, count: number) => {
    const output = log.outputs(2, UNLIMITED);
    for (let part = 0; part < count; part++) void output.write("stdout", bytes);
  };
  await during((log) => {
    log.append(2, "spawn", spawn(2));
    write(log, 100);
  });
  for (const text of [
    "",
    "{",
    "[]",
    '{"position":{"id":1,"offset":5},"running":[[2,{"start":null,"keptBytes":{}}]]}',
  ]) {
    writeFileSync(join(directory(), "note"), text);
    await during((log) => {
      expect(seenIn(log).get(2)?.start).toBeNull();
      write(log, 1);
    });
  }
});

test("the processes of a sandbox are gone when another machine begins", async () => {
  await during((log) => {
    log.append(2, "spawn", spawn(2));
    void log.outputs(2, UNLIMITED).write("stdout", Buffer.from("x"));
    expect(log.summary.running.size).toBe(1);
    log.append(null, "state", { from: "running", to: "failed", reason: "machine", head: null });
    log.append(null, "state", { from: "failed", to: "resuming", reason: "request", head: null });
    expect(log.summary.running.size).toBe(0);
    log.append(3, "spawn", spawn(3));
  });
  await during((log) => expect([...log.summary.running.keys()]).toEqual([3]));
});
