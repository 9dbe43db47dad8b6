/** The network, the limits and the share of the host that a machine has before and after a kill of the daemon. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { NetworkAudit, NetworkEntry } from "../../../src/domain/network.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { eventsOf } from "../../support/event-client.ts";
import { parseExposition } from "../../support/exposition.ts";
import { http, Outside, type OutsideServer, silent } from "../../support/outside.ts";
import { type Body, running } from "../../support/runs.ts";
import { SandboxClient } from "../../support/sandboxes/client.ts";
import { AddedProcess, replaceDaemon } from "../../support/survivors/client.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

const PAGE_BYTES = 300_000;
const NAME = "www.site.test";
const OTHER = "other.site.test";
/** vCPUs that a sandbox counts with. */
const SANDBOX_VCPUS = 1 / 8;
/** Time limits, in `seconds`: they pass after the kill. */
const LIMIT = 12;
/** A deadline that passes while no daemon runs, in `seconds`. */
const SOON = 2;

const owned = new AsyncDisposableStack();
let outside: Outside;
let web: OutsideServer;
let quiet: OutsideServer;
let appliance: Appliance;
let online: string;
let late: string;
let box: SandboxClient;
let overdue: SandboxClient;
let limited: AddedProcess;
let open: AddedProcess;
const before = { vcpus: 0, cpuMs: 0 };
let stoppedAt = 0;

const allowing = (...hosts: readonly string[]): Body => ({
  network: { allow: hosts.map((host) => ({ host, ports: "*" })) },
});
const instance = (command: string, more: Body = {}) =>
  appliance.spawn({ image: "tag:busybox", command, shell: true, disposable: true, timeout: 300, ...more });
const added = (command: string, more: Body = {}) =>
  AddedProcess.start(appliance, `/instances/${online}`, { command, shell: true, ...more });
const fetched = async (host: string) =>
  (await (await added(`wget -q -O - http://${host}:${web.port}/ | wc -c`)).ended()).output;

async function usedVcpus(): Promise<number> {
  const exposition = parseExposition(await (await fetch(`${appliance.url}/metrics`)).text());
  return exposition.value("coppice_budget_vcpus", { state: "used" }) ?? 0;
}

async function cpuMs(): Promise<number> {
  const response = await appliance.fetch(`/instances/${online}/stats?once=true`);
  return ((await response.json()) as { readonly cpu_time_ms: number }).cpu_time_ms;
}

/** The record of the machine of an operation. */
async function recordOf(id: string): Promise<{ readonly network: { readonly movedBytes: number } } | undefined> {
  const vms = join(appliance.dataDir, "vms");
  const texts = await Promise.all(
    (await readdir(vms)).map((name) => readFile(join(vms, name, "machine.json"), "utf8").catch(() => "{}")),
  );
  return texts.map((text) => JSON.parse(text)).find(({ operationId }) => operationId === id);
}

async function begun(id: string): Promise<void> {
  await running(appliance, id);
  await until("it has begun", async () => (await eventsOf(appliance, id)).some(({ type }) => type === "spawn"));
}

beforeAll(async () => {
  outside = owned.use(await Outside.start(NAME, OTHER));
  web = await outside.serve(http(() => Buffer.alloc(PAGE_BYTES, "x")));
  quiet = await outside.serve(silent);
  const flags = [
    ...["--network-allow", "*.site.test:*", "--network-private", "127.0.0.0/8", "--vm-cpu-budget", "3"],
    ...["--network-resolvers", outside.names.address],
  ];
  ({ appliance } = owned.use(await BusyboxAppliance.start({ poolSize: 0, tag: "busybox", flags })));
  online = await instance("sleep 300", allowing(NAME));
  box = await SandboxClient.open(appliance, { image: "tag:busybox", name: "box", timeout: 900 });
  overdue = await SandboxClient.open(appliance, { image: "tag:busybox", name: "overdue", timeout: 900 });
  await begun(online);
  expect(await fetched(NAME)).toBe(`${PAGE_BYTES}\n`);
  expect(await fetched(OTHER)).toBe("0\n");
  await until("the record has the bytes", async () => {
    return ((await recordOf(online))?.network.movedBytes ?? 0) > PAGE_BYTES;
  });
  open = await added(`nc ${NAME} ${quiet.port} </dev/zero >/dev/null; echo "ended with $?"`);
  await until("it is connected", () => quiet.openCount === 1);
  limited = await AddedProcess.start(appliance, `/sandboxes/${box.id}`, {
    ...{ command: "sleep", args: ["300"], timeout: LIMIT },
  });
  late = await instance("sleep 300", { timeout: LIMIT });
  await begun(late);
  await overdue.change({ timeout: SOON });
  Object.assign(before, { vcpus: await usedVcpus(), cpuMs: await cpuMs() });
  const { ends_at } = await overdue.get();
  await replaceDaemon(appliance, async () => {
    stoppedAt = Date.now();
    await until("the deadline has passed", () => Date.now() > Date.parse(String(ends_at)));
  });
});

afterAll(() => owned.disposeAsync());

test("the share of the host is taken before other work is admitted", async () => {
  // Sandboxes have the share of their starts until they are continued. The one at its deadline may be gone already.
  expect(await usedVcpus()).toBeGreaterThanOrEqual(before.vcpus - SANDBOX_VCPUS);
  await until("all are continued", async () =>
    [before.vcpus, before.vcpus - SANDBOX_VCPUS].includes(await usedVcpus()),
  );
  const waiting = await instance("true");
  expect(await appliance.finished(waiting)).toMatchObject({ status: "SUCCESS" });
  // It had no room before the end of the limited instance.
  const [first] = await eventsOf(appliance, waiting);
  const end = (await eventsOf(appliance, late)).find(({ type, spid }) => type === "exit" && spid === 1);
  expect(Date.parse(String(first?.time))).toBeGreaterThanOrEqual(Date.parse(String(end?.time)));
});

test("time limits count from the start, of the command and of a process", async () => {
  expect(await appliance.finished(late)).toMatchObject({ status: "SUCCESS", result: { timed_out: true } });
  const ofCommand = (await eventsOf(appliance, late)).find(({ type, spid }) => type === "exit" && spid === 1);
  await limited.ended();
  const ofProcess = (await box.events()).find(({ type, spid }) => type === "exit" && spid === limited.spid);
  for (const event of [ofCommand, ofProcess]) {
    expect(event?.data).toMatchObject({ timed_out: true });
    const ms = Number(event?.data["duration_ms"]);
    // A limit that began again at the restart would be longer by what had run before.
    expect(ms).toBeGreaterThanOrEqual(LIMIT * 1000 - 100);
    expect(ms).toBeLessThan(LIMIT * 1000 + 3000);
  }
});

test("a deadline that has passed while no daemon ran takes effect at once", async () => {
  await until("it is paused", async () => (await overdue.get()).state === "paused");
  const states = (await overdue.events()).filter(({ type }) => type === "state");
  expect(states.at(-2)?.data).toMatchObject({ to: "pausing", reason: "deadline" });
  expect((await box.get()).state).toBe("running");
});

test("statistics of the machine continue", async () => {
  await until("the instance is there", async () => {
    return (await appliance.fetch(`/instances/${online}/stats?once=true`)).status === 200;
  });
  expect(await cpuMs()).toBeGreaterThanOrEqual(before.cpuMs);
});

test("the network has the same rules, and its counts continue; a change takes effect", async () => {
  expect(await open.ended()).toMatchObject({ output: expect.stringMatching(/^ended with \d+\n$/) });
  await until("its other end is closed", () => quiet.openCount === 0);
  expect(await fetched(NAME)).toBe(`${PAGE_BYTES}\n`);
  expect(await fetched(OTHER)).toBe("0\n");
  const headers = { "content-type": "application/json" };
  const init = { method: "PATCH", headers, body: JSON.stringify(allowing(OTHER)) };
  expect((await appliance.fetch(`/instances/${online}`, init)).status).toBe(200);
  expect(await fetched(NAME)).toBe("0\n");
  expect(await fetched(OTHER)).toBe(`${PAGE_BYTES}\n`);

  await appliance.fetch(`/operations/${online}`, { method: "DELETE" });
  const operation = (await appliance.finished(online)) as unknown as { readonly network: NetworkAudit };
  const entry = (host: string, verdict: string): NetworkEntry | undefined =>
    operation.network.entries.find((one) => one.host === host && one.verdict === verdict && one.port !== quiet.port);
  expect(entry(NAME, "allowed")).toMatchObject({ port: web.port, connections: 2 });
  expect(entry(OTHER, "allowed")).toMatchObject({ port: web.port, connections: 1 });
  const received = (host: string) => entry(host, "allowed")?.bytes_received ?? 0;
  expect(received(NAME)).toBe(2 * received(OTHER));
  // Refused lookups of two programs before the change, and of one after it.
  expect(entry(OTHER, "denied")?.connections).toBe(2 * (entry(NAME, "denied")?.connections ?? 0));
  expect(operation.network.policies).toHaveLength(2);
  expect(Date.parse(String(entry(NAME, "allowed")?.first_at))).toBeLessThan(stoppedAt);
  expect(Date.parse(String(entry(NAME, "allowed")?.last_at))).toBeGreaterThan(stoppedAt);
});
