import { afterAll, beforeAll, expect, test } from "bun:test";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { type RunResult, resultOf, running } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

const COUNT = 24;
const POOL_SIZE = 2;
const CPU_BUDGET = 4;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let reference: string;
let base: string;

beforeAll(async () => {
  ({
    appliance,
    reference,
    image: base,
  } = owned.use(await BusyboxAppliance.start({ poolSize: POOL_SIZE, flags: ["--vm-cpu-budget", String(CPU_BUDGET)] })));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const figure = async (sample: string): Promise<number> => {
  const text = await (await fetch(`${appliance.url}/metrics`)).text();
  const line = text.split("\n").find((candidate) => candidate.startsWith(`${sample} `));
  return Number(line?.slice(sample.length) ?? Number.NaN);
};

test("spawns that are submitted at the same time all succeed, each with its own output", async () => {
  const spawn = async (index: number): Promise<RunResult> => {
    const request = { image: base, command: `echo ${index} | tee /root/own`, shell: true };
    return resultOf(await appliance.finished(await appliance.spawn(request), 280_000));
  };
  const results = await Promise.all(Array.from({ length: COUNT }, (_, index) => spawn(index)));
  expect(results.map(({ out }) => out)).toEqual(Array.from({ length: COUNT }, (_, index) => `${index}\n`));
  expect(new Set(results.map(({ image }) => image)).size).toBe(COUNT);
}, 300_000);

test("another account's single import does not wait for them", async () => {
  const other = await appliance.createToken("other");
  const { image = "" } = resultOf(await appliance.run(base, "true"));
  // Uses the whole budget until everything waits.
  const blocker = await appliance.spawn({
    ...{ image, command: "read line", shell: true, stdin_open: true, disposable: true },
    resources: { vcpus: CPU_BUDGET },
  });
  await running(appliance, blocker);
  const queued = await Promise.all(
    Array.from({ length: COUNT }, () => appliance.spawn({ image, command: "sleep 1", shell: true, disposable: true })),
  );
  // An image belongs to one account, so the other account imports its own.
  const imported = await appliance.fetch("/images/import", {
    method: "POST",
    token: other,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ registry: reference }),
  });
  const { uuid } = (await imported.json()) as { uuid: string };
  await until("the blocker has read its line", async () => {
    const path = `/instances/${blocker}/processes/1/stdin`;
    return (await appliance.post(path, { content: "\n", close: true })).status === 204;
  });
  const ended = await appliance.finished(uuid, 280_000, other);
  expect(ended).toMatchObject({ status: "SUCCESS" });
  const runs = await Promise.all(queued.map((id) => appliance.finished(id, 280_000)));
  const startOf = (operation: object) => Date.parse((operation as { started_at: string }).started_at);
  // Most of them were still waiting when it began.
  const later = runs.filter((run) => startOf(run) > startOf(ended));
  expect(later.length).toBeGreaterThan(COUNT / 2);
}, 300_000);

test("the pool fills up again, and its machines rehearse", async () => {
  await until("the pool is ready", async () => (await figure("coppice_pool_ready")) === POOL_SIZE, 60_000);
  await until("no machine is in use", async () => (await figure('coppice_vms{state="in_use"}')) === 0);
});
