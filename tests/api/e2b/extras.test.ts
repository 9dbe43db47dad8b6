/** Forks, networks, figures and logs of sandboxes, for clients of E2B. */
import { afterAll, beforeAll, describe, expect } from "bun:test";
import { findSandbox } from "../../../src/db/sandboxes/rows.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import { heldTest } from "../../support/api/program.ts";
import { finishCheckpoint } from "../../support/api/sandboxes.ts";
import { type E2bSandbox, E2bScene } from "../../support/e2b/scene.ts";
import { until } from "../../support/waiting.ts";

let scene: E2bScene;
beforeAll(async () => {
  scene = await E2bScene.start();
});
afterAll(async () => {
  expect(scene.errors).toEqual([]);
  await scene[Symbol.asyncDispose]();
});

const rowOf = (id: string) => findSandbox(scene.api.parts.db, scene.sandbox(id, "").uuid);
const detail = async (id: string) => (await scene.call("GET", `/sandboxes/${id}`)).json;
const MISSING = "00000000000040008000000000000000";

describe("a fork", () => {
  heldTest("begins with the present files, and is a sandbox like the first", async () => {
    const sandbox = await scene.create({
      metadata: { a: "b" },
      envVars: { MINE: "x" },
      network: { denyOut: ["1.1.1.1"] },
    });
    const [image, answer] = await Promise.all([
      finishCheckpoint(scene.api, sandbox.uuid),
      scene.call("POST", `/sandboxes/${sandbox.id}/fork`, { json: { count: 2, timeout: 60 } }),
    ]);
    expect([answer.status, answer.json.length]).toEqual([201, 2]);
    for (const { sandbox: fork } of answer.json) {
      expect(fork).toMatchObject({ templateID: "base", envdAccessToken: expect.any(String) });
      expect(fork.sandboxID).not.toBe(sandbox.id);
      const row = rowOf(fork.sandboxID);
      expect([row?.imageId, row?.state]).toEqual([image, "running"]);
      expect(row?.env).toMatchObject({ E2B_SANDBOX_ID: fork.sandboxID, E2B_TEMPLATE_ID: "base", MINE: "x" });
      const present = await detail(fork.sandboxID);
      expect(present).toMatchObject({ metadata: { a: "b" }, network: { denyOut: ["1.1.1.1"] } });
      expect(Date.parse(present.endAt) - Date.now()).toBeLessThanOrEqual(60_000);
      expect((await scene.sandbox(fork.sandboxID, fork.envdAccessToken).envd("GET", "/health")).status).toBe(204);
    }
    expect(sandbox.state).toBe("running");
  });

  heldTest("of a paused sandbox begins with its head, and one without a body is one for 15 seconds", async () => {
    const sandbox = await scene.create({});
    expect((await scene.call("POST", `/sandboxes/${sandbox.id}/pause`)).status).toBe(204);
    const { json } = await scene.call("POST", `/sandboxes/${sandbox.id}/fork`);
    expect(json).toHaveLength(1);
    const fork = json[0].sandbox.sandboxID;
    expect(rowOf(fork)?.imageId).toBe(rowOf(sandbox.id)?.headId);
    expect(Date.parse((await detail(fork)).endAt) - Date.now()).toBeLessThanOrEqual(15_000);
  });

  heldTest("is refused for a wrong count, for one that is gone, and for another account", async () => {
    const sandbox = await scene.create({});
    const path = `/sandboxes/${sandbox.id}/fork`;
    for (const body of [{ count: 0 }, { count: 101 }, { count: "2" }, { timeout: 0 }]) {
      expect((await scene.call("POST", path, { json: body })).status).toBe(400);
    }
    expect((await scene.call("POST", path, { key: scene.foreignKey })).status).toBe(404);
    await scene.call("DELETE", `/sandboxes/${sandbox.id}`);
    expect((await scene.call("POST", path)).json).toEqual({
      code: 404,
      message: `sandbox "${sandbox.id}" not found`,
    });
  });

  heldTest("that finds no room is an error in its place", async () => {
    const sandbox = await scene.create({});
    await scene.call("POST", `/sandboxes/${sandbox.id}/pause`);
    const { operations } = scene.api;
    operations.refusal = new ApiError("too_many_requests", "the host is full");
    const { json } = await scene.call("POST", `/sandboxes/${sandbox.id}/fork`, { json: { count: 3 } });
    operations.refusal = null;
    expect(json).toEqual(Array(3).fill({ error: { code: 429, message: "the host is full" } }));
  });
});

describe("a snapshot", () => {
  const snapshot = async (sandbox: E2bSandbox, json: object = {}) => {
    const [image, answer] = await Promise.all([
      finishCheckpoint(scene.api, sandbox.uuid),
      scene.call("POST", `/sandboxes/${sandbox.id}/snapshots`, { json }),
    ]);
    return { image, ...answer };
  };
  const list = (query = "", key = scene.key) => scene.call("GET", `/snapshots${query}`, { key });
  const remove = async (id: string, key = scene.key) =>
    (await scene.call("DELETE", `/templates/${encodeURIComponent(id)}`, { key })).status;
  const ids = ({ json }: { json: { snapshotID: string }[] }) => json.map(({ snapshotID }) => snapshotID);

  heldTest("has the present files, begins sandboxes, and can be deleted while its sandbox runs", async () => {
    const sandbox = await scene.create({ envVars: { SECRET: "x" } });
    const { status, json, image } = await snapshot(sandbox);
    expect(status).toBe(201);
    expect(json).toEqual({ snapshotID: expect.any(String), names: [`alice/${json.snapshotID}:default`] });
    const other = await scene.create({ templateID: json.snapshotID });
    expect(rowOf(other.id)?.imageId).toBe(image);
    expect(rowOf(other.id)?.env).not.toHaveProperty("SECRET");
    expect([await remove(json.snapshotID), await remove(json.snapshotID)]).toEqual([204, 404]);
    expect((await scene.call("POST", "/sandboxes", { json: { templateID: json.snapshotID } })).status).toBe(404);
    expect([sandbox.state, other.state]).toEqual(["running", "running"]);
  });

  heldTest("has the name and the tag that are asked for, and is found by them", async () => {
    const sandbox = await scene.create({});
    const named = await snapshot(sandbox, { name: "Point" });
    expect(named.json).toEqual({ snapshotID: "point", names: ["alice/point:default"] });
    const tagged = await snapshot(sandbox, { name: "alice/point:v2" });
    expect(tagged.json).toEqual({ snapshotID: "point:v2", names: ["alice/point:v2"] });
    for (const template of ["point", "alice/point:default"]) {
      expect(rowOf((await scene.create({ templateID: template })).id)?.imageId).toBe(named.image);
    }
    expect(rowOf((await scene.create({ templateID: "alice/point:v2" })).id)?.imageId).toBe(tagged.image);
    expect(ids(await list("?name=point"))).toEqual(["point:v2", "point"]);
    expect(ids(await list(`?sandboxID=${sandbox.id}`))).toEqual(["point:v2", "point"]);
    for (const query of ["?name=poin", `?sandboxID=${MISSING}`, "?sandboxID=nonsense"]) {
      expect(ids(await list(query))).toEqual([]);
    }
    const first = await list("?name=point&limit=1");
    const token = first.headers.get("x-next-token") ?? "";
    const second = await list(`?name=point&limit=1&nextToken=${token}`);
    expect([ids(first), ids(second)]).toEqual([["point:v2"], ["point"]]);
    expect(second.headers.get("x-next-token")).toBeNull();
    expect((await list("?nextToken=x")).status).toBe(400);
    const { json: templates } = await scene.call("GET", "/templates");
    expect(templates.flatMap(({ names }: { names: string[] }) => names)).toEqual(["base"]);
    expect(await remove("alice/point:v3")).toBe(404);
    expect(await remove("alice/point:v2")).toBe(204);
    expect(ids(await list("?name=point"))).toEqual(["point"]);
    expect([await remove("point"), ids(await list("?name=point"))]).toEqual([204, []]);
  });

  heldTest(
    "is its account's, and is refused for a wrong name, a template's name, and a sandbox that is gone",
    async () => {
      const sandbox = await scene.create({});
      const path = `/sandboxes/${sandbox.id}/snapshots`;
      for (const name of ["a b", "a:b:c", "bob/x", ""]) {
        expect((await scene.call("POST", path, { json: { name } })).status).toBe(400);
      }
      expect((await scene.call("POST", path, { key: scene.foreignKey })).status).toBe(404);
      expect((await scene.call("POST", "/v3/templates", { json: { name: "built" } })).status).toBe(202);
      expect((await snapshot(sandbox, { name: "built" })).status).toBe(409);
      const { json } = await snapshot(sandbox);
      expect(ids(await list("", scene.foreignKey))).toEqual([]);
      expect(await remove(json.snapshotID, scene.foreignKey)).toBe(404);
      await scene.call("DELETE", `/sandboxes/${sandbox.id}`);
      expect((await scene.call("POST", path)).status).toBe(404);
      expect(ids(await list(`?sandboxID=${sandbox.id}`))).toEqual([json.snapshotID]);
      expect(await remove(json.snapshotID)).toBe(204);
    },
  );
});

describe("a network", () => {
  const put = (id: string, json: unknown, key = scene.key) =>
    scene.call("PUT", `/sandboxes/${id}/network`, { json, key });

  heldTest("is replaced as a whole, while the sandbox runs and while it is paused", async () => {
    const sandbox = await scene.create({ network: { denyOut: ["0.0.0.0/0"], allowPublicTraffic: false } });
    const network = () => rowOf(sandbox.id)?.network ?? null;
    expect(network()).toBeNull();
    expect((await put(sandbox.id, { denyOut: ["8.8.8.8"] })).status).toBe(204);
    expect(network()).toMatchObject({ deny: ["8.8.8.8"], allow: [] });
    expect(await detail(sandbox.id)).toMatchObject({ network: { denyOut: ["8.8.8.8"], allowPublicTraffic: false } });
    expect((await put(sandbox.id, { allow_internet_access: false })).status).toBe(204);
    expect(network()).toBeNull();
    expect(await detail(sandbox.id)).toMatchObject({
      allowInternetAccess: false,
      network: { allowOut: [], denyOut: [] },
    });
    await scene.call("POST", `/sandboxes/${sandbox.id}/pause`);
    expect((await put(sandbox.id, {})).status).toBe(204);
    expect(network()?.allow.map(({ host }) => host)).toEqual(["*", "0.0.0.0/0", "::/0"]);
    expect("allowInternetAccess" in (await detail(sandbox.id))).toBeFalse();
  });

  heldTest("that is wrong or beyond the operator's is refused, and the one before stays", async () => {
    const sandbox = await scene.create({});
    const before = rowOf(sandbox.id)?.network;
    const wrong: [object, RegExp][] = [
      [{ allowOut: ["not.allowed.test"] }, /allowOut\.0.*not\.allowed\.test/],
      [{ denyOut: ["a.example.org"] }, /denyOut\.0/],
      [{ denyOut: Array(10_000).fill("8.8.8.8") }, /denyOut/],
      [{ rules: { "a.example.org": [{ transform: { headers: {} } }] } }, /rules/],
      [{ egressProxy: { url: "x" } }, /egressProxy/],
    ];
    for (const [body, message] of wrong) {
      const { status, json } = await put(sandbox.id, body);
      expect([status, json.code]).toEqual([400, 400]);
      expect(json.message).toMatch(message);
    }
    expect(rowOf(sandbox.id)?.network).toEqual(before as never);
    expect((await put(sandbox.id, {}, scene.foreignKey)).status).toBe(404);
    expect((await put(MISSING, {})).status).toBe(404);
  });
});

describe("figures", () => {
  const METRIC = {
    timestamp: expect.stringMatching(/^\d{4}-.*Z$/),
    timestampUnix: expect.any(Number),
    cpuCount: expect.any(Number),
    cpuUsedPct: expect.any(Number),
    memUsed: expect.any(Number),
    memTotal: expect.any(Number),
    memCache: expect.any(Number),
    diskUsed: expect.any(Number),
    diskTotal: expect.any(Number),
  };

  heldTest("are there as soon as a sandbox runs, and in the span that is asked for", async () => {
    const sandbox = await scene.create({});
    const get = async (query = "") => (await scene.call("GET", `/sandboxes/${sandbox.id}/metrics${query}`)).json;
    await until("the first sample", async () => (await get()).length > 0);
    const [metric] = await get();
    expect(metric).toEqual(METRIC);
    expect(await get(`?start=${metric.timestampUnix}&end=${metric.timestampUnix}`)).not.toEqual([]);
    expect(await get(`?start=${metric.timestampUnix - 3600}&end=${metric.timestampUnix - 1800}`)).toEqual([]);
    for (const query of ["?start=soon", "?end=1.5", "?start=-1", "?end=99999999999999"]) {
      expect((await get(query)).code).toBe(400);
    }
  });

  heldTest("of many sandboxes are the latest of those that are the account's", async () => {
    const sandbox = await scene.create({});
    const get = (ids: string, key = scene.key) => scene.call("GET", `/sandboxes/metrics?sandbox_ids=${ids}`, { key });
    await until("the first sample", async () => Object.keys((await get(sandbox.id)).json.sandboxes).length > 0);
    expect((await get(`${sandbox.uuid},${MISSING},nonsense,,${sandbox.id}`)).json).toEqual({
      sandboxes: { [sandbox.id]: METRIC },
    });
    expect((await get(sandbox.id, scene.foreignKey)).json).toEqual({ sandboxes: {} });
    expect((await get(Array.from({ length: 101 }, (_, index) => index).join(","))).status).toBe(400);
    expect((await scene.call("GET", "/sandboxes/metrics")).status).toBe(400);
    const foreign = await scene.call("GET", `/sandboxes/${sandbox.id}/metrics`, { key: scene.foreignKey });
    expect(foreign.status).toBe(404);
  });
});

describe("logs", () => {
  heldTest("are the events of the sandbox, from either end and within limits", async () => {
    const sandbox = await scene.create({});
    const get = async (query = "") => (await scene.call("GET", `/v2/sandboxes/${sandbox.id}/logs${query}`)).json.logs;
    const all = await get();
    expect(all[0]).toEqual({
      timestamp: expect.stringMatching(/Z$/),
      message: "the sandbox is starting",
      level: "info",
      fields: { event: "state" },
    });
    expect(await get("?limit=1")).toEqual(all.slice(0, 1));
    expect(await get("?direction=backward&limit=1")).toEqual(all.slice(-1));
    expect(await get("?direction=backward")).toEqual(all.toReversed());
    expect(await get("?limit=0")).toEqual([]);
    expect(await get("?search=is%20running")).toHaveLength(1);
    expect(await get("?level=error")).toEqual([]);
    expect(await get(`?cursor=${Date.now() + 60_000}`)).toEqual([]);
    expect(await get("?cursor=0&limit=5000")).toEqual(all);
    const old = (await scene.call("GET", `/sandboxes/${sandbox.id}/logs?start=0`)).json;
    expect(old.logEntries).toEqual(all);
    expect(old.logs[0].timestamp).toBe(all[0].timestamp);
    const { message, level, fields } = all[0];
    expect(JSON.parse(old.logs[0].line)).toEqual({ message, level, logger: "coppice", ...fields });
    for (const query of ["?level=loud", "?direction=up", "?cursor=-1", `?search=${"x".repeat(257)}`]) {
      const { status } = await scene.call("GET", `/v2/sandboxes/${sandbox.id}/logs${query}`);
      expect(status).toBe(400);
    }
    expect((await scene.call("GET", `/sandboxes/${MISSING}/logs`)).status).toBe(404);
  });
});

heldTest("what is not offered is refused by name, and only to those with a key", async () => {
  const paths = [
    "/volumes",
    "/volumes/x",
    "/secrets",
    "/teams",
    "/nodes/a/b",
    "/admin/x",
    "/api-keys",
    "/access-tokens/1",
  ];
  for (const path of paths) {
    for (const method of ["GET", "POST", "DELETE"]) {
      const { status, json } = await scene.call(method, path);
      expect([status, json.code]).toEqual([404, 404]);
      expect(json.message).toMatch(/^[a-zA-Z ]+ are not offered by this server$/);
    }
  }
  expect((await scene.call("GET", "/volumes")).json.message).toBe("volumes are not offered by this server");
  expect((await scene.call("GET", "/volumes", { key: null })).status).toBe(401);
});
