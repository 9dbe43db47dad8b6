import { afterAll, beforeAll, expect, test } from "bun:test";
import type { Appliance } from "../support/appliance.ts";
import { BusyboxAppliance } from "../support/busybox-appliance.ts";
import { type RunResult, resultOf } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

const COUNT = 24;
const POOL_SIZE = 2;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let reference: string;
let base: string;

beforeAll(async () => {
  ({ appliance, reference, image: base } = owned.use(await BusyboxAppliance.start({ poolSize: POOL_SIZE })));
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

test("another account's single run does not wait for them", async () => {
  const other = await appliance.createToken("other");
  const { image = "" } = resultOf(await appliance.run(base, "true"));
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
  const ended = await (await appliance.fetch(`/operations/${uuid}?wait=60`, { token: other })).json();
  expect(ended).toMatchObject({ status: "SUCCESS" });
  const states = await Promise.all(
    queued.map(async (id) => (await (await appliance.fetch(`/operations/${id}`)).json()) as { status: string }),
  );
  expect(states.filter(({ status }) => status === "PENDING").length).toBeGreaterThan(0);
  await Promise.all(queued.map((id) => appliance.finished(id, 280_000)));
}, 300_000);

test("the pool fills up again, and its machines rehearse", async () => {
  await until("the pool is ready", async () => (await figure("coppice_pool_ready")) === POOL_SIZE, 60_000);
  expect(await figure('coppice_vms{state="in_use"}')).toBe(0);
});
