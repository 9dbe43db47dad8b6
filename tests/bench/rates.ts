import { interleaved, quantile, rowOf } from "../../src/cli/bench-figures.ts";
import type { BenchHost } from "./host.ts";
import { latenciesAt, rateOf } from "./load.ts";
import type { Finding } from "./part.ts";
import { startBareServer } from "./server.ts";

const CONNECTIONS_COUNT = 16;
const REQUESTS_PER_SECOND = 100;
const WARM_UP_MS = 1000;

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
  const durationMs = host.quick ? 1000 : 3000;
  const values = await interleaved(host.rounds(7, 3), {
    ours: () => rateOf(ours, CONNECTIONS_COUNT, durationMs),
    theirs: () => rateOf(theirs, CONNECTIONS_COUNT, durationMs),
  });
  yield rowOf({
    name: "GET of an operation",
    from: `request sent, ${CONNECTIONS_COUNT} connections`,
    to: "answer read",
    values: values.ours,
    unit: "/s",
    against: { name: "bare Elysia route, same tokens and schema", values: values.theirs },
    atLeast: 0.6,
  });
  const latencyMs = host.quick ? 5000 : 20_000;
  await host.warm();
  const alone = await latenciesAt(ours, REQUESTS_PER_SECOND, latencyMs);
  const request = { image: host.base, command: "while :; do :; done", shell: true, timeout: 600 };
  const busy = await Promise.all([1, 2].map(() => appliance.spawn(request)));
  await untilExecuting(host, busy);
  // What the two took from the pool is put back meanwhile, as in real life.
  const late = await latenciesAt(ours, REQUESTS_PER_SECOND, latencyMs);
  for (const busyId of busy) {
    await appliance.fetch(`/operations/${busyId}`, { method: "DELETE" });
    await appliance.finished(busyId);
  }
  yield rowOf({
    name: "GET of an operation, p99 at 100/s beside 2 busy VMs",
    from: "request sent",
    to: "answer read",
    values: [quantile(late, 0.99)],
    unit: "ms",
    atMost: 10,
    note: `median ${quantile(late, 0.5).toFixed(2)} ms of ${late.length}; without the VMs p99 ${quantile(alone, 0.99).toFixed(2)} ms`,
  });
}

async function untilExecuting(host: BenchHost, ids: readonly string[]): Promise<void> {
  for (const id of ids) {
    while ((await host.appliance.fetch(`/instances/${id}/stats?once=true`)).status !== 200) await Bun.sleep(100);
  }
}
