import { expect, test } from "bun:test";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { LogEvent } from "../../../../src/domain/log-event.ts";
import { EventFile } from "../../../../src/storage/events/event-file.ts";
import { EventWriter } from "../../../../src/storage/events/writer.ts";
import { ProcessLog } from "../../../../src/supervisor/instance/process-log.ts";
import { allEvents } from "../../../support/events.ts";
import { testDirectory } from "../../../support/images/layer-files.ts";

const LIMIT_BYTES = 200_000;
const COUNT = 2000;
/** Events of a process in a full log: its start, its dropped output, and its end. */
const PROCESS_BYTES_MAX = 1200;

test("a full log has the starts and ends of all processes, in a small part of it", async () => {
  const directory = testDirectory("process-log");
  const path = join(directory, "log");
  const log = new EventWriter({ path, now: () => 1n, limitBytes: LIMIT_BYTES });
  const argv = ["/bin/sh", "-c", "echo ".padEnd(2000, "x")];
  const cwd = "/deep".repeat(800);
  for (let spid = 2; spid < COUNT + 2; spid++) {
    const process = new ProcessLog(log, { spid, truncateOutputAtBytes: 10 });
    const sink = process.sink({ argv, cwd, timeoutMs: 0 });
    sink.started(spid);
    void sink.output("stdout", Buffer.alloc(100));
    void sink.output("stderr", Buffer.alloc(100));
    process.cutOff({ exitCode: 137, ranMs: 1, cpuTimeMs: 1, memoryBytes: 1 });
    await log.written();
  }
  await log.end();
  log.file?.[Symbol.dispose]();
  using file = EventFile.open(path) as EventFile;
  expect(file.sizeBytes).toBeGreaterThan(LIMIT_BYTES);
  expect(file.sizeBytes).toBeLessThan(LIMIT_BYTES + COUNT * PROCESS_BYTES_MAX);
  const events = await Array.fromAsync(allEvents(file));
  const of = (type: LogEvent["type"]) => events.filter((event) => event.type === type);
  for (const type of ["spawn", "exit"] as const) expect(of(type).map(({ spid }) => spid)).toHaveLength(COUNT);
  const spawns = of("spawn").map(({ payload }) => JSON.parse(Buffer.from(payload).toString()));
  const [first, last] = [spawns[0], spawns.at(-1)];
  expect([first.cwd, first.args_truncated, first.args[1].length]).toEqual([cwd, true, 1013]);
  expect([last.cwd, last.args_truncated, last.command]).toEqual([cwd.slice(0, 64), true, "/bin/sh"]);
  expect(of("size_cap")).toHaveLength(1);
  await rm(directory, { recursive: true });
});

test("a resumed log counts the whole standard input, also a chunk that was sent in part before", async () => {
  const path = join(testDirectory("process-log"), "log");
  await using stack = new AsyncDisposableStack();
  stack.defer(() => rm(join(path, ".."), { recursive: true }));
  const events = new EventWriter({ path, now: () => 1n });
  stack.defer(() => events.file?.[Symbol.dispose]());
  const first = new ProcessLog(events, { spid: 1, truncateOutputAtBytes: 10 });
  const input = async function* () {
    yield Buffer.from("four");
    yield Buffer.from("seven b");
  };
  const sink = first.sink({ argv: ["cat"], cwd: "/", timeoutMs: 0 });
  const sent = first.counting(input());
  await sent.next();
  // The first chunk was sent, and two bytes of the second one.
  await sent.next();
  const record = sink.record();
  expect(record.stdinBytes).toBe(4);
  const again = new ProcessLog(events, record, record);
  const rest = async function* () {
    yield Buffer.from("ven b");
  };
  await Array.fromAsync(again.counting(rest(), 6));
  expect(again.resume(record.start).record().stdinBytes).toBe(11);
  await events.end();
});
