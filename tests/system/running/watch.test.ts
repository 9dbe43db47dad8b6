import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { basename, resolve } from "node:path";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { controlGroups } from "../../support/appliance/control-groups.ts";
import { parseExposition } from "../../support/exposition.ts";
import { until } from "../../support/waiting.ts";

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base: string;

beforeAll(async () => {
  ({ appliance, image: base } = owned.use(await BusyboxAppliance.start({ tag: "busybox" })));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const outside = (path: string) => fetch(`${appliance.url}${path}`);
const scrape = async () => parseExposition(await (await outside("/metrics")).text());

test("every step of a run and of an import is measured, within the time that has passed", async () => {
  const startedAt = performance.now();
  const { status } = await appliance.run(base, "sleep 1; echo x > /root/x");
  const passedSeconds = (performance.now() - startedAt) / 1000;
  expect(status).toBe("SUCCESS");
  const { value } = await scrape();
  const spawn = ["queue", "clone", "attach", "mount", "exec", "freeze", "index", "publish"];
  for (const phase of spawn) expect(value("coppice_spawn_phase_seconds_count", { phase })).toBe(1);
  const imported = ["queue", "resolve", "pull", "unpack", "build", "clone", "mount", "index", "publish"];
  for (const phase of imported) expect(value("coppice_import_phase_seconds_count", { phase })).toBe(1);
  const secondsOf = (phase: string): number => value("coppice_spawn_phase_seconds_sum", { phase }) ?? Number.NaN;
  expect(spawn.reduce((all, phase) => all + secondsOf(phase), 0)).toBeLessThanOrEqual(passedSeconds);
  expect(secondsOf("exec")).toBeGreaterThanOrEqual(1);
  expect(value("coppice_operations_ended_total", { kind: "instance", state: "success" })).toBe(1);
  expect(value("coppice_storage_objects", { class: "images" })).toBeGreaterThan(0);
});

test("running instances are counted and listed while they run, and no longer", async () => {
  const id = await appliance.spawn({ image: base, command: "sleep 60", shell: true, disposable: true });
  const state = { kind: "instance", state: "executing" };
  await until("the instance runs", async () => (await scrape()).value("coppice_vms", { state: "in_use" }) === 1);
  expect((await scrape()).value("coppice_operations", state)).toBe(1);
  const { stdout } = await appliance.command(["ps"]);
  expect(stdout).toContain(id);
  expect(stdout).toContain("MiB");
  await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
  await appliance.finished(id);
  await until("it is gone", async () => (await scrape()).value("coppice_vms", { state: "in_use" }) === 0);
  const after = await scrape();
  expect(after.value("coppice_operations", state)).toBe(0);
  expect(after.value("coppice_operations_ended_total", { kind: "instance", state: "cancelled" })).toBe(1);
  expect((await appliance.command(["ps"])).stdout).not.toContain(id);
});

test("the service is ready, and lists every check", async () => {
  await until("it is ready", async () => (await outside("/readyz")).status === 200);
  const { checks, isolation } = (await (await outside("/readyz")).json()) as {
    checks: { name: string; ok: boolean }[];
    isolation: string;
  };
  expect(checks.map(({ name, ok }) => `${name} ${ok}`)).toEqual([
    "acceleration true",
    "template true",
    "disk true",
    "database true",
    "registry_tools true",
  ]);
  expect(isolation).toStartWith("vm");
});

test("doctor boots a VM without affecting the running appliance, and leaves nothing behind", async () => {
  await until("the pool is full", async () => (await scrape()).value("coppice_pool_ready") === 1);
  const before = (await appliance.machinePids()).sort();
  const config = resolve(appliance.dataDir, "../config.toml");
  const { stdout } = await appliance.command(["doctor", "--json", "--config", config]);
  const { healthy, findings } = JSON.parse(stdout) as { healthy: boolean; findings: { name: string }[] };
  const works = expect.stringMatching(/ works: booted, saved, cloned and given a disk in [\d.]+ m?s$/);
  expect(findings.find(({ name }) => name === "probe")).toMatchObject({ state: "ok", summary: works });
  expect(healthy).toBe(true);
  expect((await appliance.machinePids()).sort()).toEqual(before);
  expect(await appliance.unfinished()).toEqual([]);
  const left = await controlGroups((path) => basename(path).startsWith("coppice-trial-"));
  // Other tests may run doctor, too.
  expect(left.filter((path) => !existsSync(`/proc/${path.slice(path.lastIndexOf("-") + 1)}`))).toEqual([]);
  expect((await appliance.run(base, "true", { disposable: true })).status).toBe("SUCCESS");
});

test("the benchmark measures the running appliance, and removes what it made", async () => {
  const images = async () => ((await (await appliance.fetch("/images?limit=100")).json()) as { uuid: string }[]).length;
  const before = await images();
  const only = "idle,spawn,looks,rates,lines,exec,followers";
  const options = ["--image", base, "--quick", "--rounds", "1", "--json", "--only", only];
  const { code, stdout } = await appliance.command(["bench", ...options]);
  // A busy machine may miss a bar.
  expect([0, 1]).toContain(code);
  type Named = { readonly name: string; readonly text?: string; readonly against?: { name: string } | null };
  const report = JSON.parse(stdout) as Record<"rows" | "remarks" | "missing" | "failures", Named[]>;
  expect(report.failures).toEqual([]);
  expect(report.missing).toEqual([]);
  // This process has a row while it runs, which it does for some time after an import.
  const rows = report.rows.filter(({ name }) => !name.startsWith("process that connects to the outside"));
  expect(rows.map(({ name, against }) => [name, against?.name ?? null])).toEqual([
    ["idle daemon", null],
    ["GET of an operation, p99 at 100/s with 2 busy VMs", "p99 without the VMs"],
    ["true by exec into a running instance", "a warm disposable spawn of true"],
    ["run that writes 10 MB, with 200 followers", "the same with one follower"],
    ["daemon's memory with these followers", null],
  ]);
  expect(report.remarks.map(({ name }) => name)).toEqual([
    "warm spawn of true, disposable",
    "warm spawn that changes a file, captured",
    "steps of these spawns, mean ms",
    "list the root of the image",
    "stat a path in the image",
    "list the newest 100 operations",
    "GET of an operation",
    "line of a process to a follower of its events",
    "the same line to an attachment",
  ]);
  const steps = report.remarks.find(({ name }) => name.startsWith("steps"))?.text ?? "";
  for (const step of ["queue", "clone", "attach", "mount", "exec", "freeze", "index", "publish"]) {
    expect(steps).toMatch(new RegExp(`\\b${step} \\d`));
  }
  expect(await images()).toBe(before);
}, 180_000);

test("the log connects a request with its operation, and its owner can read it", async () => {
  const response = await appliance.post("/instances", { image: base, command: "true", disposable: true });
  const { uuid } = (await response.json()) as { uuid: string };
  await appliance.finished(uuid);
  const request = response.headers.get("x-request-id") ?? "";
  // The log arrives through a pipe, and may be read later than the answer.
  const lines = () => appliance.log.split("\n").filter((line) => line.includes(uuid));
  await until("its end is logged", () => lines().some((line) => line.includes("operation ended")));
  const messages = lines().map((line) => JSON.parse(line) as { message: string; request?: string });
  expect(messages.map(({ message }) => message)).toEqual(
    expect.arrayContaining(["operation accepted", "operation started", "operation ended"]),
  );
  expect(messages.find(({ message }) => message === "operation accepted")?.request).toBe(request);
  const { stdout, code } = await appliance.command(["op", "log", uuid]);
  expect(code).toBe(0);
  expect(stdout).toContain(`operation accepted request=${request}`);
  expect(stdout).toMatch(/operation ended status=SUCCESS queue_ms=\d+ clone_ms=\d+/);
  const stranger = await appliance.createToken("stranger");
  expect((await appliance.fetch(`/operations/${uuid}/log`, { token: stranger })).status).toBe(404);
});
