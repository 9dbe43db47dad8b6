import { readFileSync } from "node:fs";
import { interleaved, median, quantile, rowOf } from "../../src/cli/bench/figures.ts";
import { type LoadTarget, rateOf, spansAt } from "../../src/cli/bench/load.ts";
import { running } from "../support/runs.ts";
import type { BenchHost } from "./host.ts";
import type { Finding } from "./part.ts";
import { startBareServer } from "./server.ts";

const CONNECTIONS_COUNT = 16;
const REQUESTS_PER_SECOND = 100;
const WARM_UP_MS = 1000;
/** In /proc/PID/stat, behind the name; system time is the next. */
const UTIME_FIELD = 11;
const US_PER_TICK = 10_000;

/** GET of an operation: how many, and how late while machines compute. */
export async function* rateRows(host: BenchHost): AsyncGenerator<Finding> {
  const { appliance } = host;
  const id = await appliance.spawn({ image: host.base, command: "true", shell: true, disposable: true });
  const operation = await appliance.finished(id);
  const path = `/v1/operations/${id}`;
  const headers = { authorization: `Bearer ${appliance.token}` };
  await using bare = await startBareServer(["route", appliance.dataDir, JSON.stringify(operation)]);
  const ours = { url: `${appliance.url}${path}`, headers };
  const theirs = { url: new URL(path, bare.url).href, headers };
  for (const target of [ours, theirs]) await rateOf(target, CONNECTIONS_COUNT, WARM_UP_MS);
  await host.warm();
  const durationMs = host.quick ? 1000 : 3000;
  const cpuUs = { ours: [] as number[], theirs: [] as number[] };
  const measured = async (name: keyof typeof cpuUs, target: LoadTarget, pid: number): Promise<number> => {
    const [startedAt, before] = [performance.now(), cpuTimeUs(pid)];
    const rate = await rateOf(target, CONNECTIONS_COUNT, durationMs);
    const answers = rate * ((performance.now() - startedAt) / 1000);
    cpuUs[name].push((cpuTimeUs(pid) - before) / answers);
    return rate;
  };
  const values = await interleaved(host.rounds(7, 3), {
    ours: () => measured("ours", ours, appliance.pid),
    theirs: () => measured("theirs", theirs, bare.pid),
  });
  yield rowOf({
    name: "GET of an operation",
    from: `request sent, ${CONNECTIONS_COUNT} connections`,
    to: "answer read",
    values: values.ours,
    unit: "/s",
    against: { name: "bare Elysia route, same tokens and schema", values: values.theirs },
    atLeast: 0.6,
    // What does not depend on what else the machine does.
    note: `an answer takes ${median(cpuUs.ours).toFixed(1)} us of a processor against ${median(cpuUs.theirs).toFixed(1)}`,
  });
  const spans = host.quick ? { count: 5, durationMs: 2000 } : { count: 7, durationMs: 3000 };
  await host.warm();
  const alone = (await spansAt(ours, REQUESTS_PER_SECOND, spans)).flat();
  const request = { image: host.base, command: "while :; do :; done", shell: true, timeout: 600 };
  const busy = await Promise.all([1, 2].map(() => appliance.spawn(request)));
  await untilExecuting(host, busy);
  // What the two took from the pool is put back meanwhile, as in real life.
  const late = await spansAt(ours, REQUESTS_PER_SECOND, spans);
  for (const busyId of busy) {
    await appliance.fetch(`/operations/${busyId}`, { method: "DELETE" });
    await appliance.finished(busyId);
  }
  yield rowOf({
    name: "GET of an operation, p99 at 100/s beside 2 busy VMs",
    from: "request sent",
    to: "answer read",
    values: late.map((span) => quantile(span, 0.99)),
    unit: "ms",
    atMost: 10,
    note: `median ${quantile(late.flat(), 0.5).toFixed(2)} ms of ${late.flat().length}; without the VMs p99 ${quantile(alone, 0.99).toFixed(2)} ms`,
  });
}

/** User and system time of a process so far, in `microseconds`. */
function cpuTimeUs(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ") ?? [];
  return (Number(fields[UTIME_FIELD]) + Number(fields[UTIME_FIELD + 1])) * US_PER_TICK;
}

async function untilExecuting(host: BenchHost, ids: readonly string[]): Promise<void> {
  for (const id of ids) {
    await running(host.appliance, id);
  }
}
