/**
 * An appliance under load while things go wrong: kills of the daemon and of monitors, a disk that fills, a registry that
 * lies, slow clients, a clock that jumps by an hour. What it acknowledged must hold after each, and nothing be left at the
 * end. COPPICE_TEST_FAULT_SECONDS says for how long (120), COPPICE_TEST_FAULT_KILLS how many kills there must be (3; for
 * which it goes on twice as long), COPPICE_TEST_SEED which faults (a run tells its seed).
 */

import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { cgroupNamespace } from "../../src/daemon.ts";
import { openDatabase } from "../../src/db/database.ts";
import { dataLayout } from "../../src/storage/layout.ts";
import { OPEN_LAYERS_COUNT_MAX } from "../../src/storage/limits.ts";
import { type Appliance, processesWith } from "../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { controlGroups } from "../support/appliance/control-groups.ts";
import { SmallDisk } from "../support/appliance/small-disk.ts";
import { allLayerIds } from "../support/database.ts";
import { RawRegistry } from "../support/images/hostile-images.ts";
import { listLayers } from "../support/images/layer-files.ts";
import { seededRandom, seedOfTests } from "../support/random.ts";
import { pause, until } from "../support/waiting.ts";
import { Acknowledged } from "./acknowledged.ts";
import { Faults } from "./faults.ts";
import { Load } from "./load.ts";

const SECONDS_DEFAULT = 120;
const KILLS_DEFAULT = 3;
const CLIENTS_COUNT = 4;
const PAUSE_MS_MAX = 6000;
const PROGRESS_MS_MAX = 15_000;
const SETTLE_MS_MAX = 400_000;
/** Beside the time of the faults: start, the last restart, the end of what waits, and the checks. */
const MORE_MS = 900_000;
const DISK_BYTES = 3_221_225_472;
const DISK_FILES = 60_000;
const RESERVE_BYTES = 67_108_864;
/** Descriptors beyond those of a new daemon: indexes that stay open for the next reader, and a few more. */
const DESCRIPTORS_MORE_MAX = OPEN_LAYERS_COUNT_MAX + 60;
/** A pool of one machine: its monitor, and the launcher that waits for it. */
const POOL_PROCESSES_COUNT = 2;
const POOL_MS_MAX = 60_000;
const ERROR_LINES_MAX = 20;
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
    const faults = new Faults({ appliance, disk, random, clockFile, readable: () => base });

    const running = load.run(CLIENTS_COUNT);
    const end = Date.now() + seconds * 1000;
    const latest = end + seconds * 1000;
    const isOver = () => Date.now() > latest || (Date.now() > end && faults.kills >= killsMin);
    while (!isOver() && problems.length === 0) {
      await pause("faults come at any time", random.below(PAUSE_MS_MAX));
      // On a slow host nothing would succeed between faults otherwise; every third fault does not wait.
      if (random.below(3) > 0) await progress(facts);
      const fault = await faults.one();
      const found = fault.includes("daemon") || fault === "restart" ? await facts.check() : [];
      problems.push(...found.map((problem) => `after ${fault}: ${problem}`));
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
    // Merges go on in the background for a while.
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

/** Waits until one more operation has succeeded, or for as long as that should take at most. */
async function progress(facts: Acknowledged): Promise<void> {
  const before = facts.successes;
  await until("an operation succeeds", () => facts.successes > before, PROGRESS_MS_MAX).catch(() => undefined);
}

/** The errors that the daemon logged, to find the cause of a failure. */
function errorsIn(log: string): string {
  const lines = log.split("\n").filter((line) => line.includes('"level":"error"'));
  return `${lines.slice(0, ERROR_LINES_MAX).join("\n")}\n`;
}

/** The remains on the host of a daemon that was stopped with SIGTERM. */
async function leftBy(appliance: Appliance): Promise<string[]> {
  const layout = dataLayout(appliance.dataDir);
  using db = openDatabase(layout.database);
  const known = new Set(allLayerIds(db));
  const namespace = `/${cgroupNamespace(appliance.dataDir)}/`;
  const mounts = await Bun.file("/proc/self/mountinfo").text();
  return [
    ...(await processesWith(appliance.dataDir)).map(({ argv }) => argv),
    ...(await controlGroups((path) => path.includes(namespace))),
    ...mounts.split("\n").filter((line) => line.includes(appliance.dataDir)),
    ...(await appliance.leftovers()),
    ...[...(await listLayers(layout))].filter((id) => !known.has(id)).map((id) => `layer ${id}`),
  ].filter((line) => line !== "");
}
