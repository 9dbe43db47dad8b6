/** Requests for one sandbox that arrive together: each has the answer of some order of them, and nothing is left. */

import { afterAll, beforeAll, expect } from "bun:test";
import { heldTest } from "../../support/api/program.ts";
import { E2bScene } from "../../support/e2b/scene.ts";
import { until } from "../../support/waiting.ts";

let scene: E2bScene;
beforeAll(async () => {
  scene = await E2bScene.start();
});
afterAll(async () => {
  expect(scene.errors).toEqual([]);
  await scene[Symbol.asyncDispose]();
});

const COUNT = 20;
/** The requests, and the statuses that each may have. */
const REQUESTS = {
  pause: { method: "POST", path: "/pause", statuses: [204, 409] },
  connect: { method: "POST", path: "/connect", json: { timeout: 60 }, statuses: [200, 201] },
  resume: { method: "POST", path: "/resume", json: { timeout: 60 }, statuses: [201, 409] },
  timeout: { method: "POST", path: "/timeout", json: { timeout: 60 }, statuses: [204] },
  network: { method: "PUT", path: "/network", json: {}, statuses: [204, 409] },
  detail: { method: "GET", path: "", statuses: [200] },
  kill: { method: "DELETE", path: "", statuses: [204] },
} as const;
type Name = keyof typeof REQUESTS;

heldTest.each<{ from: "running" | "paused"; names: readonly Name[]; ends: readonly string[] }>([
  { from: "running", names: ["pause"], ends: ["paused"] },
  { from: "running", names: ["pause", "connect"], ends: ["paused", "running"] },
  { from: "running", names: ["pause", "resume"], ends: ["paused", "running"] },
  { from: "running", names: ["kill"], ends: ["ended"] },
  { from: "running", names: ["pause", "connect", "timeout", "network", "detail", "kill"], ends: ["ended"] },
  { from: "paused", names: ["connect"], ends: ["running"] },
  { from: "paused", names: ["resume"], ends: ["running"] },
  { from: "paused", names: ["connect", "pause"], ends: ["paused", "running"] },
  { from: "paused", names: ["connect", "kill"], ends: ["ended"] },
])("from $from: $names leave it $ends", async ({ from, names, ends }) => {
  const sandbox = await scene.create();
  if (from === "paused") expect((await scene.call("POST", `/sandboxes/${sandbox.id}/pause`)).status).toBe(204);
  const isGone = ends.includes("ended");
  const call = async (name: Name) => {
    const { method, path, statuses, ...body } = REQUESTS[name];
    const { status, text } = await scene.call(method, `/sandboxes/${sandbox.id}${path}`, body);
    // One that is paused has no deadline; one that waits for a sandbox learns that it is being killed.
    const others = isGone ? [404, 409] : name === "timeout" ? [404] : [];
    const allowed: readonly number[] = [...statuses, ...others];
    if (!allowed.includes(status)) throw new Error(`${name}: ${status} ${text}`);
    return status;
  };
  const turns = Array.from({ length: COUNT }, (_, index) => names[index % names.length] ?? "detail");
  const statuses = await Promise.all(turns.map(call));
  const count = (status: number) => statuses.filter((other) => other === status).length;
  if (names.length === 1 && names[0] !== "connect") expect(count(names[0] === "resume" ? 201 : 204)).toBe(1);
  if (names[0] === "connect" && names.length === 1) expect([count(201), count(200)]).toEqual([1, COUNT - 1]);
  expect(ends).toContain(sandbox.state ?? "");
  await scene.call("DELETE", `/sandboxes/${sandbox.id}`);
  expect(sandbox.state).toBe("ended");
  await until("no machine is left", () => scene.machines.size === 0);
});

heldTest("a request that is repeated at once makes one sandbox, and no other request gets it", async () => {
  const json = { templateID: "base", timeout: 60 };
  const headers = { "idempotency-key": "race" };
  const open = (more: object = {}, key = scene.key) =>
    scene.call("POST", "/v2/sandboxes", { key, headers, json: { ...json, ...more } });
  const answers = await Promise.all([...Array.from({ length: COUNT }, () => open()), open({ timeout: 61 })]);
  const other = answers.pop();
  const ids = new Set(answers.map(({ json }) => json.sandboxID));
  expect([other?.status, ids.size, scene.machines.size]).toEqual([422, 1, 1]);
  expect((await open({}, scene.foreignKey)).status).toBe(404);
  const [id] = ids;
  expect((await scene.call("DELETE", `/sandboxes/${id}`)).status).toBe(204);
  expect((await open()).status).toBe(409);
});
