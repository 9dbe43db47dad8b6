/** Requests that wait for a machine while the host has no room. */
import { afterAll, afterEach, beforeAll, describe, expect } from "bun:test";
import { countLiveSandboxes, findSandbox } from "../../../src/db/sandboxes/rows.ts";
import type { AccountId } from "../../../src/domain/ids.ts";
import { LIMITS } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { type E2bSandbox, E2bScene } from "../../support/e2b/scene.ts";
import { until } from "../../support/waiting.ts";

const ALICE = "alice" as AccountId;
let scene: E2bScene;
beforeAll(async () => {
  scene = await E2bScene.start({}, { limits: { ...LIMITS, roomMsMax: 1500 } });
});
afterEach(() => {
  scene.isFull = false;
});
afterAll(async () => {
  expect(scene.errors).toEqual([]);
  await scene[Symbol.asyncDispose]();
});

const operation = async ({ uuid }: E2bSandbox) => findSandbox(scene.api.parts.db, uuid)?.operationId;
const waiting = async () => {
  const { json } = await scene.api.call("GET", "/v1/operations?status=PENDING&kind=sandbox");
  return json.length;
};
const live = () => countLiveSandboxes(scene.api.parts.db, ALICE);
const create = (body: object = {}, headers: Record<string, string> = {}) =>
  scene.call("POST", "/v2/sandboxes", { json: { templateID: "base", ...body }, headers });
const connect = ({ id }: E2bSandbox) => scene.call("POST", `/v2/sandboxes/${id}/connect`, { json: { timeout: 60 } });
async function paused(body: Readonly<Record<string, unknown>> = {}): Promise<E2bSandbox> {
  const sandbox = await scene.create(body);
  expect((await scene.call("POST", `/sandboxes/${sandbox.id}/pause`)).status).toBe(204);
  return sandbox;
}

/** Sends a request whose client leaves as soon as its operation waits. */
async function left(path: string, { headers = {}, json }: { headers?: Record<string, string>; json?: object }) {
  const client = new AbortController();
  const request = fetch(`${scene.url}${path}`, {
    method: json === undefined ? "GET" : "POST",
    headers: { "x-api-key": scene.key, "content-type": "application/json", ...headers },
    signal: client.signal,
    ...(json === undefined ? {} : { body: JSON.stringify(json) }),
  }).then(
    ({ status }) => status,
    () => "left",
  );
  await until("it waits", async () => (await waiting()) === 1);
  client.abort();
  expect(await request).toBe("left");
}

describe("without room on the host", () => {
  heldTest("a creation is refused after its wait, and leaves nothing", async () => {
    const before = live();
    scene.isFull = true;
    const { status, headers, json } = await create({}, { "idempotency-key": "full" });
    expect([status, headers.get("retry-after"), json.code]).toEqual([429, "15", 429]);
    expect([live(), await waiting()]).toEqual([before, 0]);
    scene.isFull = false;
    expect((await create({}, { "idempotency-key": "full" })).status).toBe(201);
  });

  heldTest("a creation whose client leaves is given up at once", async () => {
    const before = live();
    scene.isFull = true;
    await left("/v2/sandboxes", { json: { templateID: "base" } });
    await until("nothing waits", async () => (await waiting()) === 0);
    expect(live()).toBe(before);
  });

  heldTest("a connection to a paused sandbox leaves it paused", async () => {
    const sandbox = await paused();
    scene.isFull = true;
    const { status, json } = await connect(sandbox);
    expect([status, json.code, sandbox.state, await waiting()]).toEqual([429, 429, "paused", 0]);
    await left(`/sandboxes/${sandbox.id}/connect`, { json: {} });
    await until("nothing waits", async () => (await waiting()) === 0);
    expect([sandbox.state, await operation(sandbox)]).toEqual(["paused", null]);
    scene.isFull = false;
    expect((await connect(sandbox)).status).toBe(201);
  });

  heldTest("requests that resume a sandbox leave it paused", async () => {
    const sandbox = await paused({ autoPause: true, autoResume: { enabled: true } });
    scene.isFull = true;
    const [envd, port] = await Promise.all([
      sandbox.envd("GET", "/health"),
      scene.call("GET", "/", { key: null, headers: { "e2b-sandbox-id": sandbox.id, "e2b-sandbox-port": "8000" } }),
    ]);
    expect([envd.status, port.status, sandbox.state, await waiting()]).toEqual([429, 429, "paused", 0]);
    scene.isFull = false;
    expect([(await sandbox.envd("GET", "/health")).status, sandbox.state]).toEqual([204, "running"]);
  });

  heldTest("forks are refused one by one, and nothing is left of them", async () => {
    const { id } = await paused();
    const before = live();
    scene.isFull = true;
    const { status, json } = await scene.call("POST", `/sandboxes/${id}/fork`, { json: { count: 2 } });
    const error = { error: { code: 429, message: "the host has no room for the sandbox now" } };
    expect([status, json, live(), await waiting()]).toEqual([201, [error, error], before, 0]);
  });

  heldTest("the client that stays gets the sandbox for which another one has waited", async () => {
    const sandbox = await paused();
    scene.isFull = true;
    const leaving = new AbortController();
    const { e2b } = scene.api.parts.service;
    const principal = { accountId: ALICE, grants: new Set(["*"]), tokenId: "" };
    const request = { timeoutSeconds: 60, signal: leaving.signal };
    const first = e2b.connect(principal, sandbox.uuid, request).catch(({ message }: Error) => message);
    await until("it waits", () => sandbox.state === "resuming");
    const second = e2b.connect(principal, sandbox.uuid, { ...request, signal: AbortSignal.timeout(60_000) });
    leaving.abort(new Error("the client has left"));
    expect(await first).toBe("the client has left");
    scene.isFull = false;
    scene.room(sandbox.uuid);
    expect([(await second).isResumed, sandbox.state]).toEqual([false, "running"]);
  });
});

describe("a machine that cannot start", () => {
  heldTest("leaves its sandbox paused, with the reason for the client", async () => {
    const sandbox = await paused({ autoPause: true, autoResume: { enabled: true } });
    const { operations } = scene.api.parts;
    const failing = async () => {
      await until("it waits", async () => sandbox.state === "resuming");
      const id = (await operation(sandbox)) ?? ("" as never);
      operations.start(id);
      operations.fail(id, { error: "unavailable", message: "no machine", details: {} });
    };
    scene.isFull = true;
    for (const request of [() => connect(sandbox), () => sandbox.envd("GET", "/health")]) {
      const [{ status, json }] = await Promise.all([request(), failing()]);
      expect([status, json, sandbox.state]).toEqual([503, { code: 503, message: "no machine" }, "paused"]);
    }
    scene.isFull = false;
    await scene.create();
    expect((await sandbox.envd("GET", "/health")).status).toBe(204);
  });
});
