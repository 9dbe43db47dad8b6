/**
 * A chain of runs, each on the image of the one before it, with the time and the bytes of every hundred. The first file
 * is read at the end of the chain. Usage: bun tests/soak/chain.ts [RUNS]
 */

import { readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { resultOf } from "../support/runs.ts";

const RUNS_COUNT_DEFAULT = 1000;
const REPORT_COUNT = 100;
const BLOCK_BYTES = 512;

const runCount = Number(process.argv[2] ?? RUNS_COUNT_DEFAULT);
const say = (text: string): void => void process.stdout.write(`${text}\n`);

async function allocatedBytes(directory: string): Promise<number> {
  let bytes = 0;
  for (const name of await readdir(directory)) {
    // A merged layer may be removed between the listing and the look.
    const status = await stat(join(directory, name)).catch(() => null);
    bytes += (status?.blocks ?? 0) * BLOCK_BYTES;
  }
  return bytes;
}

await using setup = await BusyboxAppliance.start({ poolSize: 2 });
const { appliance } = setup;
let { image } = setup;
const layers = join(appliance.dataDir, "layers");
let bytes = await allocatedBytes(layers);
let times: number[] = [];
for (let run = 1; run <= runCount; run++) {
  const startedAt = performance.now();
  const command = `mkdir -p /t/d${run % 10} && echo ${run} > /t/d${run % 10}/f${run} && rm -f /t/*/f${run - 50}`;
  image = String(resultOf(await appliance.run(image, command)).image);
  times.push(performance.now() - startedAt);
  if (run % REPORT_COUNT !== 0 && run !== runCount) continue;
  const now = await allocatedBytes(layers);
  const sorted = times.toSorted((a, b) => a - b);
  const median = Math.round(sorted[Math.floor(sorted.length / 2)] ?? 0);
  const longest = Math.round(sorted.at(-1) ?? 0);
  say(`run ${run}: median ${median} ms, longest ${longest} ms, ${now - bytes} bytes more, ${now} in all`);
  bytes = now;
  times = [];
}
const { out } = resultOf(await appliance.run(image, "cat /t/*/* | sort -n | tr '\\n' ' '", { disposable: true }));
const expected = Array.from({ length: Math.min(50, runCount) }, (_, at) => runCount - Math.min(50, runCount) + 1 + at);
if (out.trim() !== expected.join(" ")) throw new Error(`the end of the chain shows ${out}`);
say(`the end of the chain shows what ${runCount} runs left`);
