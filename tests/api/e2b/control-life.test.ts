/** Deadlines, pauses, and ends of sandboxes, as clients of E2B see them. */
import { afterAll, beforeAll, describe, expect } from "bun:test";
import { heldTest } from "../../support/api/program.ts";
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

const post = ({ id }: Pick<E2bSandbox, "id">, action: string, json?: unknown) =>
  scene.call("POST", `/sandboxes/${id}/${action}`, json === undefined ? {} : { json });
const detail = async ({ id }: E2bSandbox) => (await scene.call("GET", `/sandboxes/${id}`)).json;
const left = async (sandbox: E2bSandbox) => (Date.parse((await detail(sandbox)).endAt) - Date.now()) / 1000;
const paused = async (body: Readonly<Record<string, unknown>> = {}) => {
  const sandbox = await scene.create(body);
  expect((await post(sandbox, "pause")).status).toBe(204);
  return sandbox;
};

describe("a deadline", () => {
  heldTest("moves to either side by timeout, and only to a later time by refreshes", async () => {
    const sandbox = await scene.create({ timeout: 600 });
    const { status, text } = await post(sandbox, "timeout", { timeout: 60 });
    expect([status, text, (await left(sandbox)) <= 60]).toEqual([204, "", true]);
    expect((await post(sandbox, "refreshes")).status).toBe(204);
    expect(await left(sandbox)).toBeGreaterThan(20);
    expect((await post(sandbox, "refreshes", { duration: 120 })).status).toBe(204);
    expect(await left(sandbox)).toBeGreaterThan(60);
    expect((await post(sandbox, "timeout", { timeout: 86_401 })).status).toBe(400);
  });

  heldTest("of now kills a sandbox", async () => {
    const sandbox = await scene.create();
    expect((await post(sandbox, "timeout", { timeout: 0 })).status).toBe(204);
    await until("it is killed", () => sandbox.state === "ended");
    expect((await post(sandbox, "timeout", { timeout: 9 })).status).toBe(404);
    expect(await detail(sandbox)).toEqual({ code: 404, message: `sandbox "${sandbox.id}" not found` });
  });

  heldTest("of now pauses a sandbox that asks for that", async () => {
    const sandbox = await scene.create({ autoPause: true });
    expect((await post(sandbox, "timeout", { timeout: -3 })).status).toBe(204);
    await until("it is paused", () => sandbox.state === "paused");
    expect(await detail(sandbox)).toMatchObject({ state: "paused", pauseMode: "filesystem" });
    expect((await post(sandbox, "timeout", { timeout: 9 })).status).toBe(404);
    expect((await post(sandbox, "refreshes", {})).status).toBe(404);
  });
});

describe("a pause", () => {
  heldTest("is answered when the files are safe, and refused when there was one", async () => {
    const sandbox = await paused();
    expect(sandbox.state).toBe("paused");
    const { status, json } = await post(sandbox, "pause", {});
    expect([status, json.code]).toEqual([409, 409]);
  });

  heldTest("is followed by the same sandbox", async () => {
    const sandbox = await paused({ timeout: 500, metadata: { a: "b" } });
    const before = await detail(sandbox);
    const { status, json } = await post(sandbox, "connect", { timeout: 60 });
    expect([status, json.sandboxID, json.envdAccessToken]).toEqual([201, sandbox.id, sandbox.token]);
    const { pauseMode: _mode, ...after } = { ...before, state: "running", endAt: expect.any(String) };
    expect(await detail(sandbox)).toEqual(after);
    const seconds = await left(sandbox);
    expect(seconds > 30 && seconds <= 60).toBe(true);
    expect((await sandbox.envd("GET", "/health")).status).toBe(204);
  });

  heldTest("of the files only is not ended by a request to the sandbox", async () => {
    for (const [memory, status] of [
      [false, 502],
      [true, 204],
    ] as const) {
      const sandbox = await scene.create({ autoPause: true, autoResume: { enabled: true } });
      expect((await post(sandbox, "pause", { memory })).status).toBe(204);
      expect((await sandbox.envd("GET", "/health")).status).toBe(status);
    }
    expect((await (await paused()).envd("GET", "/health")).status).toBe(502);
  });

  heldTest("that two requests ask for is one", async () => {
    const sandbox = await scene.create();
    const both = await Promise.all([post(sandbox, "pause", {}), post(sandbox, "pause", {})]);
    expect(both.map(({ status }) => status).toSorted()).toEqual([204, 409]);
  });
});

describe("a connection", () => {
  heldTest("to a running sandbox never makes its life shorter", async () => {
    const sandbox = await scene.create({ timeout: 600 });
    const short = await post(sandbox, "connect", { timeout: 10 });
    expect([short.status, short.json.envdAccessToken, (await left(sandbox)) > 500]).toEqual([200, sandbox.token, true]);
    const long = await scene.call("POST", `/v2/sandboxes/${sandbox.id}/connect`, { json: { timeout: 900 } });
    expect([long.status, (await left(sandbox)) > 800]).toEqual([200, true]);
    expect((await post(sandbox, "connect", { timeout: 0 })).status).toBe(400);
  });

  heldTest("waits for a pause that is under way", async () => {
    const sandbox = await scene.create();
    const pausing = post(sandbox, "pause", {});
    await until("it pauses", () => sandbox.state !== "running");
    const { status } = await post(sandbox, "connect", {});
    expect([(await pausing).status, status, sandbox.state]).toEqual([204, 201, "running"]);
  });

  heldTest("of several clients at once starts one machine", async () => {
    const sandbox = await paused();
    const all = await Promise.all([1, 2, 3].map(() => post(sandbox, "connect", {})));
    expect(all.map(({ status }) => status).toSorted()).toEqual([200, 200, 201]);
  });
});

describe("a resume", () => {
  heldTest("starts a paused sandbox, and is refused for a running one", async () => {
    const sandbox = await paused();
    const { status, json } = await post(sandbox, "resume", { timeout: 60, autoPause: true });
    expect([status, json.sandboxID]).toEqual([201, sandbox.id]);
    expect(await detail(sandbox)).toMatchObject({ state: "running", lifecycle: { onTimeout: "pause" } });
    expect((await post(sandbox, "resume")).status).toBe(409);
  });
});

describe("a kill", () => {
  heldTest("ends a running sandbox and a paused one, once", async () => {
    for (const sandbox of [await scene.create(), await paused()]) {
      const kill = () => scene.call("DELETE", `/sandboxes/${sandbox.id}`);
      const { status, text } = await kill();
      expect([status, text, sandbox.state]).toEqual([204, "", "ended"]);
      expect((await kill()).status).toBe(404);
    }
  });
});

describe("a sandbox of another account", () => {
  heldTest("does not exist, as one with an id that is none", async () => {
    const { id } = await scene.create();
    const unknown = [id, Bun.randomUUIDv7(), "nope", "a%2Fb"];
    const calls = unknown.flatMap((text) => [
      ["GET", text],
      ["DELETE", text],
      ...["timeout", "refreshes", "connect", "pause", "resume"].map((action) => ["POST", `${text}/${action}`]),
    ]);
    for (const [method = "", path = ""] of calls) {
      const json = method === "POST" ? { json: { timeout: 9 } } : {};
      const answer = await scene.call(method, `/sandboxes/${path}`, { key: scene.foreignKey, ...json });
      expect([method, path, answer.status, answer.json.code]).toEqual([method, path, 404, 404]);
    }
  });
});
