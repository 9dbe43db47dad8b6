/**
 * A chain of runs at full speed, on a host that is never idle: another account keeps its queue full all the time. Prints
 * how many disks the runs had, and how long they took. Usage: bun tests/soak/busy-chain.ts [RUNS]
 */
import { BusyboxAppliance } from "../support/appliance/busybox-appliance.ts";
import { resultOf } from "../support/runs.ts";

interface Answer {
  readonly uuid?: string;
  readonly status?: string;
  readonly result?: { readonly image: string };
}

const RUNS_COUNT_DEFAULT = 200;
const REPORT_COUNT = 10;
/** Concurrent runs of the other account: more than there are places. */
const OTHERS_COUNT = 4;
/** Computes for a moment, so that the processors are never idle either. */
const BUSY_COMMAND = "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done";
const FLAGS = ["--vm-cpu-budget", "2"];

const runCount = Number(process.argv[2] ?? RUNS_COUNT_DEFAULT);
const say = (text: string): void => void process.stdout.write(`${text}\n`);

await using setup = await BusyboxAppliance.start({ poolSize: 2, flags: FLAGS });
const { appliance, reference } = setup;
let { image } = setup;
const token = await appliance.createToken("other");
const other = await importForOther();
let isDone = false;
let otherCount = 0;

/** The same appliance with the token of another account. */
async function call(path: string, body?: unknown): Promise<Answer> {
  const headers = { "content-type": "application/json" };
  const request = body === undefined ? {} : { method: "POST", headers, body: JSON.stringify(body) };
  return (await (await appliance.fetch(path, { ...request, token })).json()) as Answer;
}

async function importForOther(): Promise<string> {
  const { uuid } = await call("/images/import", { registry: reference });
  const { result } = await call(`/operations/${uuid}?wait=60`);
  if (result === undefined) throw new Error("the import of the other account did not end");
  return result.image;
}

async function keepBusy(): Promise<void> {
  while (!isDone) {
    const { uuid } = await call("/instances", { image: other, command: BUSY_COMMAND, shell: true, disposable: true });
    let status: string | undefined = "PENDING";
    while (status === "PENDING" || status === "EXECUTING") ({ status } = await call(`/operations/${uuid}?wait=60`));
    otherCount++;
  }
}

const others = Array.from({ length: OTHERS_COUNT }, () => keepBusy());
const startedAt = performance.now();
let times: number[] = [];
let disks: number[] = [];
for (let run = 1; run <= runCount; run++) {
  const runStartedAt = performance.now();
  const command = `mkdir -p /t && echo ${run} > /t/f${run % 10} && ls -d /sys/block/sd* | wc -l`;
  const operation = await appliance.run(image, command);
  if (operation.status !== "SUCCESS") {
    // A shared host may be too slow for a machine's own time limits.
    say(`run ${run} failed: ${JSON.stringify(operation.error)}`);
    continue;
  }
  const result = resultOf(operation);
  image = String(result.image);
  times.push(performance.now() - runStartedAt);
  // One of the disks is the scratch.
  disks.push(Number(result.out) - 1);
  if (run % REPORT_COUNT !== 0 && run !== runCount) continue;
  const sorted = times.toSorted((a, b) => a - b);
  const median = Math.round(sorted[Math.floor(sorted.length / 2)] ?? 0);
  say(
    `run ${run}: disks ${Math.min(...disks)} to ${Math.max(...disks)}, now ${disks.at(-1)}; ` +
      `median ${median} ms, longest ${Math.round(sorted.at(-1) ?? 0)} ms; ` +
      `${otherCount} other runs in ${Math.round((performance.now() - startedAt) / 1000)} s`,
  );
  times = [];
  disks = [];
}
isDone = true;
say("waiting for the other account's last runs");
await Promise.all(others);
const merges = ["idle", "urgent", "forced"].map((urgency) => {
  return `${appliance.log.split(`"urgency":"${urgency}"`).length - 1} ${urgency}`;
});
say(`merges: ${merges.join(", ")}`);
