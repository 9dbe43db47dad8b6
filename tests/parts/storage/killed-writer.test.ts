import { expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { LogId } from "../../../src/domain/ids.ts";
import { EventFile, eventLogPath } from "../../../src/storage/events/event-file.ts";
import { EventLogs } from "../../../src/storage/events/event-logs.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { wallClock } from "../../../src/system/wall-clock.ts";
import { allEvents } from "../../support/events.ts";
import { testDirectory } from "../../support/images/layer-files.ts";
import { linesFrom, SPID } from "../../support/killed-writer/lines.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

const KILLS_COUNT = 25;
const PROGRAM = join(import.meta.dir, "../../support/killed-writer/program.ts");

/** Starts the program, and kills it when it has written for a number of rounds. */
async function killOnce(args: readonly string[], roundsCount: number): Promise<void> {
  await using program = Bun.spawn([process.execPath, PROGRAM, ...args], { stdout: "pipe", timeout: 60_000 });
  let count = 0;
  for await (const marks of program.stdout) {
    count += marks.byteLength;
    if (count >= roundsCount) program.kill("SIGKILL");
  }
  expect(count).toBeGreaterThanOrEqual(roundsCount);
  expect(await program.exited).toBe(137);
}

for (const kind of ["plain", "ring"] as const) {
  test(`every byte of the output is in a ${kind} log once, however often its writer is killed`, async () => {
    const layout = dataLayout(testDirectory(`killed-writer-${kind}`));
    using _removed = { [Symbol.dispose]: () => rmSync(layout.root, { recursive: true }) };
    await layout.ensure();
    const id = Bun.randomUUIDv7() as LogId;
    const random = seededRandom(seedOfTests());
    for (let kill = 0; kill < KILLS_COUNT; kill++) await killOnce([layout.root, id, kind], 1 + random.below(60));
    const logs = new EventLogs(layout, new Accounts(), wallClock());
    const opened = kind === "ring" ? { log: await logs.openRing(id), summary: null } : await logs.reopen(id);
    if (opened === null) throw new Error("there is no log");
    const { log } = opened;
    const summary = opened.summary ?? ("summary" in log ? log.summary : null);
    const sizes = summary?.running.get(SPID)?.keptBytes ?? { stdout: 0, stderr: 0 };
    await log.end();
    log[Symbol.dispose]();
    using file = EventFile.open(eventLogPath(layout, id));
    if (file === null) throw new Error("there is no log");
    const events = await Array.fromAsync(allEvents(file));
    expect(events.map((event) => event.id)).toEqual(events.map((_, at) => (events[0]?.id ?? 0) + at));
    for (const stream of ["stdout", "stderr"] as const) {
      const output = Buffer.concat(
        events.filter(({ spid, type }) => spid === SPID && type === stream).map(({ payload }) => payload),
      );
      // The first ones of a ring are gone.
      const expected = linesFrom(sizes[stream] - output.byteLength, output.byteLength);
      expect(output.equals(expected)).toBe(true);
      expect(sizes[stream]).toBeGreaterThan(100);
      if (kind === "plain") expect(output.byteLength).toBe(sizes[stream]);
    }
    expect(sizes.stdout).toBeGreaterThan(kind === "ring" ? 2_000_000 : 0);
  });
}
