import { afterAll, beforeAll, expect, test } from "bun:test";
import { Api } from "../support/api/api.ts";
import { programTest } from "../support/api/program.ts";
import { parseExposition } from "../support/exposition.ts";
import { sectionOf } from "../support/source/documents.ts";
import { until } from "../support/waiting.ts";

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

async function scrape() {
  const answer = await api.call("GET", "/metrics", { token: null });
  expect(answer.status).toBe(200);
  expect(answer.headers.get("content-type")).toBe("text/plain; version=0.0.4; charset=utf-8");
  return parseExposition(answer.text);
}

test("requests are counted by the pattern of their route, never by the client's text", async () => {
  const id = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
  await api.call("GET", `/v1/operations/${id}`);
  await api.call("GET", `/v1/operations/${id}`);
  await api.call("GET", "/v1/operations", { token: null });
  await fetch(`${api.url}/no/${id}`);
  const { value, samples } = await scrape();
  const route = "/v1/operations/:id";
  expect(value("coppice_http_requests_total", { method: "GET", route, status: "404" })).toBe(2);
  expect(value("coppice_http_requests_total", { method: "GET", route: "none", status: "401" })).toBe(1);
  expect(value("coppice_http_requests_total", { method: "GET", route: "none", status: "404" })).toBe(1);
  expect(value("coppice_http_request_duration_seconds_count", { method: "GET", route })).toBe(2);
  expect(samples.flatMap(({ labels }) => Object.values(labels)).join("\n")).not.toContain(id);
});

programTest("the program has metrics of its machines, storage, disk and event loop", async () => {
  const measured = async () => ((await scrape()).value("coppice_event_loop_lag_seconds_count") ?? 0) > 0;
  await until("the event loop was measured", measured);
  const { value, types } = await scrape();
  expect(value("coppice_build_info")).toBe(1);
  expect(value("coppice_operations", { kind: "instance", state: "pending" })).toBe(0);
  expect(value("coppice_vms", { state: "in_use" })).toBe(0);
  expect(value("coppice_pool_size")).toBe(2);
  expect(value("coppice_storage_bytes", { class: "layers" })).toBe(0);
  expect(value("coppice_storage_bytes", { class: "merged_layers" })).toBe(0);
  expect(value("coppice_layer_merges_waiting")).toBe(0);
  expect(types.get("coppice_layer_merges_total")).toBe("counter");
  expect(types.get("coppice_layer_merge_duration_seconds")).toBe("histogram");
  expect(value("coppice_storage_bytes", { class: "database" })).toBeGreaterThan(0);
  expect(value("coppice_disk_bytes", { state: "free" })).toBeGreaterThan(0);
  expect(value("coppice_disk_files", { state: "free" })).toBeGreaterThan(0);
  expect(value("coppice_budget_memory_bytes", { state: "total" })).toBeGreaterThan(0);
  expect(value("coppice_event_loop_lag_seconds_count")).toBeGreaterThan(0);
  expect(value("process_resident_memory_bytes")).toBeGreaterThan(10_000_000);
  expect(types.get("coppice_spawn_phase_seconds")).toBe("histogram");
});

programTest("readiness lists every check", async () => {
  const { checks, ready } = (await api.call("GET", "/readyz", { token: null })).json;
  expect(checks.map(({ name }: { name: string }) => name)).toEqual([
    "acceleration",
    "template",
    "disk",
    "database",
    "registry_tools",
  ]);
  // Emulation is not allowed here, and there may be no KVM.
  const good = Object.fromEntries(checks.map(({ name, ok }: { name: string; ok: boolean }) => [name, ok]));
  expect(good).toMatchObject({ disk: true, database: true, registry_tools: true });
  expect(ready).toBe(Object.values(good).every((ok) => ok === true));
});

programTest("the page about operation lists every metric, and no other", async () => {
  const { types } = await scrape();
  const listed = sectionOf("docs/operations.md", "Monitoring").match(/`(?:coppice|process)_[a-z_]+`/g) ?? [];
  expect(listed.map((name) => name.replaceAll("`", "")).sort()).toEqual([...types.keys()].sort());
});
