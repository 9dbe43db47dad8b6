/**
 * An appliance under load with faults: kills of the daemon and of monitors, a full disk, a registry that lies, slow
 * clients, a clock that jumps by an hour. All that it acknowledged must hold after each fault, and the end must leave no
 * remains on the host. COPPICE_TEST_FAULT_SECONDS is the time (75), COPPICE_TEST_FAULT_KILLS the number of kills (3; the
 * test lasts up to twice as long to reach it), COPPICE_TEST_SEED the seed of the faults, which a run prints.
 */

import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { OPEN_LAYERS_COUNT_MAX } from "../../src/storage/limits.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { SmallDisk } from "../support/appliance/small-disk.ts";
import { RawRegistry } from "../support/images/hostile-images.ts";
import { seededRandom, seedOfTests } from "../support/random.ts";
import { pause, until } from "../support/waiting.ts";
import { Acknowledged } from "./acknowledged.ts";
import { ALL_AT_ONCE, Faults } from "./faults.ts";
import { Load } from "./load.ts";
import { errorsIn, leftBy } from "./remains.ts";

const SECONDS_DEFAULT = 75;
const KILLS_DEFAULT = 3;
const CLIENTS_COUNT = 4;
const PAUSE_MS_MAX = 6000;
const PROGRESS_MS_MAX = 15_000;
const SETTLE_MS_MAX = 400_000;
/** Time in addition to that of the faults: the start, the last restart, the end of waiting operations, and the checks. */
const MORE_MS = 900_000;
const DISK_BYTES = 3_221_225_472;
const DISK_FILES = 60_000;
const RESERVE_BYTES = 67_108_864;
/** Descriptors beyond those of a new daemon: indexes that stay open for the next reader, and a few more. */
const DESCRIPTORS_MORE_MAX = OPEN_LAYERS_COUNT_MAX + 60;
/** A pool of one machine: its monitor, and the launcher, which waits for it. */
const POOL_PROCESSES_COUNT = 2;
const POOL_MS_MAX = 60_000;
const LIBFAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

const seconds = Number(process.env["COPPICE_TEST_FAULT_SECONDS"] ?? SECONDS_DEFAULT);
const killsMin = Number(process.env["COPPICE_TEST_FAULT_KILLS"] ?? KILLS_DEFAULT);
const seed = seedOfTests();

test(
  `what was acknowledged holds, and nothing is left, through ${seconds} s of faults (seed ${seed})`,
  async () => {
    await using owned = new AsyncDisposableStack();
    const random = seededRandom(seed);
    const rawRegistry = owned.use(new RawRegistry());
    const disk = owned.use(await SmallDisk.make(DISK_BYTES, DISK_FILES));
    const clockFile = join(disk.path, "clock");
    await writeFile(clockFile, "+0");
    expect(existsSync(LIBFAKETIME)).toBe(true);
    const { appliance, image: base } = owned.use(
      await BusyboxAppliance.start({
        registries: [rawRegistry.host],
        parent: disk.path,
        flags: ["--limits-disk-reserve-bytes", String(RESERVE_BYTES)],
        environment: {
          LD_PRELOAD: LIBFAKETIME,
          FAKETIME_TIMESTAMP_FILE: clockFile,
          FAKETIME_CACHE_DURATION: "1",
          FAKETIME_DONT_FAKE_MONOTONIC: "1",
        },
      }),
    );
    const facts = new Acknowledged(appliance);
    facts.images.set(base, { files: new Map(), hasShell: true, deletion: "none" });
    const problems: string[] = [];
    const load = new Load({ appliance, facts, random, registry: rawRegistry, base, problems });
    const faults = new Faults({ appliance, disk, random, clockFile, readable: base, weights: ALL_AT_ONCE });

    const running = load.run(CLIENTS_COUNT);
    const end = Date.now() + seconds * 1000;
    const latest = end + seconds * 1000;
    const isOver = () => Date.now() > latest || (Date.now() > end && faults.kills >= killsMin);
    while (!isOver() && problems.length === 0) {
      await pause("faults come at any time", random.below(PAUSE_MS_MAX));
      // On a slow host nothing would succeed between faults otherwise. One of three faults does not wait.
      if (random.below(3) > 0) await progress(facts);
      const fault = await faults.one();
      const contradictions = fault.includes("daemon") || fault === "restart" ? await facts.check() : [];
      problems.push(...contradictions.map((problem) => `after ${fault}: ${problem}`));
    }
    await faults.end();
    load.stop();
    await running;
    problems.push(...(await facts.settle(SETTLE_MS_MAX)), ...(await facts.check()));
    process.stderr.write(
      `seed ${seed}: ${JSON.stringify(faults.counts)}; ${JSON.stringify(load.done)}; ${facts.summary}\n`,
    );
    if (problems.length > 0) process.stderr.write(errorsIn(appliance.log));
    expect(problems).toEqual([]);

    const pool = async () => (await appliance.machinePids()).length <= POOL_PROCESSES_COUNT;
    // Merges in the background take a while.
    await until(
      "only the pool is left",
      async () => (await appliance.unfinished()).length === 0 && (await pool()),
      POOL_MS_MAX,
    );
    const used = (await readdir(`/proc/${appliance.pid}/fd`)).length;
    await appliance.down();
    expect(await leftBy(appliance)).toEqual([]);
    await appliance.up();
    expect(used).toBeLessThan((await readdir(`/proc/${appliance.pid}/fd`)).length + DESCRIPTORS_MORE_MAX);
    expect(await facts.check()).toEqual([]);
    // A test without successes and kills proves nothing.
    expect(faults.kills).toBeGreaterThanOrEqual(killsMin);
    expect(facts.successes).toBeGreaterThanOrEqual(killsMin);
  },
  2 * seconds * 1000 + MORE_MS,
);

/** Waits until one more operation has succeeded, or for the longest time that this may take. */
async function progress(facts: Acknowledged): Promise<void> {
  const before = facts.successes;
  await until("an operation succeeds", () => facts.successes > before, PROGRESS_MS_MAX).catch(() => undefined);
}
