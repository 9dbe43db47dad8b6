/**
 * Spawns one after the other, half of them captured and deleted again, and fails when the daemon's memory, its
 * descriptors, the disk or the time of a spawn grow. COPPICE_SOAK_COUNT says how many (1000).
 */
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { median, timed } from "../../src/cli/bench/measure.ts";
import { shortNumber } from "../../src/cli/bench/report.ts";
import { run } from "../../src/system/exec.ts";
import { BenchHost } from "./host.ts";

const COUNT_DEFAULT = 1000;
const PARTS_COUNT = 10;
const DU_MS = 60_000;
const MIB = 1_048_576;
/** The write-ahead log of the database grows to about half of this and is then used again. */
const LOG_MIB = 8;
/** Caches fill in the first part; what comes after may not grow by more than this over the second part. */
const GROWTH_MAX = { residentMib: 15, descriptors: 5, latency: 1.3, diskKibPerSpawn: 8 };

const count = Number(process.env["COPPICE_SOAK_COUNT"] ?? COUNT_DEFAULT);
const partCount = Math.ceil(count / PARTS_COUNT);

interface Reading {
  readonly spawns: number;
  readonly medianMs: number;
  readonly residentMib: number;
  readonly descriptors: number;
  readonly diskMib: number;
  readonly machines: number;
}

await using host = await BenchHost.start(false);
const readings: Reading[] = [];
for (let part = 1; part <= PARTS_COUNT; part++) {
  const times: number[] = [];
  for (let n = 0; n < partCount; n++) times.push(await timed(() => spawn(n % 2 === 0)));
  await host.target.poolFull();
  const reading = await read(part * partCount, median(times));
  readings.push(reading);
  process.stdout.write(
    `${Object.entries(reading)
      .map(([name, value]) => `${name} ${shortNumber(value)}`)
      .join(", ")}\n`,
  );
}
const problems = growth(readings);
for (const problem of problems) process.stdout.write(`${problem}\n`);
process.stdout.write(problems.length === 0 ? `${count} spawns: nothing grows\n` : "");
process.exitCode = problems.length === 0 ? 0 : 1;

async function spawn(disposable: boolean): Promise<void> {
  const { image } = await host.target.run(host.base, "echo changed > /root/file", { disposable });
  if (image === undefined) return;
  const response = await host.appliance.fetch(`/images/${image}`, { method: "DELETE" });
  if (response.status !== 204) throw new Error(`DELETE of an image answered ${response.status}`);
}

async function read(spawns: number, medianMs: number): Promise<Reading> {
  const { pid, dataDir } = host.appliance;
  const { stdout } = await run({ argv: ["du", "-s", "-k", dataDir], timeoutMs: DU_MS });
  return {
    spawns,
    medianMs,
    residentMib: (await host.target.residentMib()) ?? 0,
    descriptors: readdirSync(`/proc/${pid}/fd`).length,
    diskMib: (Number.parseInt(Buffer.from(stdout).toString(), 10) * 1024) / MIB,
    machines: readdirSync(join(dataDir, "vms")).length,
  };
}

/** Between the second part and the last: the first fills caches. */
function growth(all: readonly Reading[]): string[] {
  const [first, last] = [all[1], all.at(-1)];
  if (first === undefined || last === undefined || first === last) return ["too few parts"];
  const spawns = last.spawns - first.spawns;
  const checks: [string, number, number][] = [
    ["resident memory grew, MiB", last.residentMib - first.residentMib, GROWTH_MAX.residentMib],
    ["descriptors grew", last.descriptors - first.descriptors, GROWTH_MAX.descriptors],
    ["latency grew, times", last.medianMs / first.medianMs, GROWTH_MAX.latency],
    ["disk grew, KiB a spawn", ((last.diskMib - first.diskMib - LOG_MIB) * 1024) / spawns, GROWTH_MAX.diskKibPerSpawn],
    ["machines were left", last.machines - first.machines, 0],
  ];
  return checks
    .filter(([, value, limit]) => value > limit)
    .map(([what, value, limit]) => `${what}: ${shortNumber(value)} > ${limit}`);
}
