/** Creation of sandboxes by clients of E2B. */
import { afterAll, beforeAll, describe, expect } from "bun:test";
import { findSandbox } from "../../../src/db/sandboxes/rows.ts";
import { heldTest } from "../../support/api/program.ts";
import { E2bScene } from "../../support/e2b/scene.ts";

let scene: E2bScene;
beforeAll(async () => {
  scene = await E2bScene.start();
});
afterAll(async () => {
  expect(scene.errors).toEqual([]);
  await scene[Symbol.asyncDispose]();
});

const create = (body: Readonly<Record<string, unknown>>, headers: Record<string, string> = {}) =>
  scene.call("POST", "/v2/sandboxes", { json: { templateID: "base", ...body }, headers });
const detail = async (id: string) => (await scene.call("GET", `/sandboxes/${id}`)).json;
/** Seconds until a deadline. */
const left = ({ endAt }: { endAt: string }) => (Date.parse(endAt) - Date.now()) / 1000;

describe("a creation", () => {
  heldTest("is answered when the sandbox runs, with what clients require", async () => {
    const { status, json } = await create({ metadata: { a: "1" }, secure: true, mcp: null, network: null });
    expect([status, json]).toEqual([
      201,
      {
        sandboxID: expect.stringMatching(/^[0-9a-f]{32}$/),
        templateID: "base",
        alias: "base",
        clientID: "coppice",
        envdVersion: "0.6.4",
        envdAccessToken: expect.stringMatching(/^[a-z2-7]{52}$/),
        trafficAccessToken: null,
        domain: null,
      },
    ]);
    const sandbox = scene.sandbox(json.sandboxID, json.envdAccessToken);
    expect(sandbox.state).toBe("running");
    expect((await sandbox.envd("GET", "/health")).status).toBe(204);
    const described = await detail(json.sandboxID);
    expect(described).toEqual({
      ...{ sandboxID: json.sandboxID, templateID: "base", alias: "base", clientID: "coppice", envdVersion: "0.6.4" },
      startedAt: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$/),
      endAt: expect.any(String),
      ...{ cpuCount: expect.any(Number), memoryMB: expect.any(Number), diskSizeMB: expect.any(Number) },
      ...{ metadata: { a: "1" }, state: "running", envdAccessToken: json.envdAccessToken },
      lifecycle: { onTimeout: "kill", autoResume: false },
    });
    expect(left(described)).toBeGreaterThan(200);
    expect(left(described)).toBeLessThanOrEqual(300);
  });

  heldTest("has the variables that scripts expect, and those of the request", async () => {
    const { json } = await create({ envVars: { MINE: "x" } });
    const { env } = findSandbox(scene.api.parts.db, scene.sandbox(json.sandboxID, "").uuid) ?? {};
    expect(env).toEqual({ E2B_SANDBOX: "true", E2B_SANDBOX_ID: json.sandboxID, E2B_TEMPLATE_ID: "base", MINE: "x" });
  });

  heldTest("lives 15 seconds by default on the old path, and as long as it asks for", async () => {
    const old = await scene.call("POST", "/sandboxes", { json: { templateID: "base" } });
    expect(left(await detail(old.json.sandboxID))).toBeLessThanOrEqual(15);
    const long = await create({ timeout: 86_400 });
    expect(left(await detail(long.json.sandboxID))).toBeGreaterThan(86_000);
  });

  heldTest("keeps what the request says of its life", async () => {
    const body = { autoPause: true, autoResume: { enabled: true }, allow_internet_access: false };
    const { json } = await create(body);
    expect(await detail(json.sandboxID)).toMatchObject({
      lifecycle: { onTimeout: "pause", autoResume: true },
      allowInternetAccess: false,
    });
  });

  heldTest("of a sandbox with private ports gives their token", async () => {
    const { json } = await create({ network: { allowPublicTraffic: false, maskRequestHost: "localhost" } });
    expect(json.trafficAccessToken).toMatch(/^[a-z2-7]{52}$/);
    const { network } = await detail(json.sandboxID);
    expect(network).toEqual({
      ...{ allowOut: [], denyOut: [], allowPublicTraffic: false, maskRequestHost: "localhost" },
    });
  });

  heldTest("takes an image by its id, with and without dashes", async () => {
    const image = findSandbox(scene.api.parts.db, (await scene.create()).uuid)?.imageId ?? "";
    for (const templateID of [image, image.replaceAll("-", "")]) {
      const { status, json } = await create({ templateID });
      expect([status, json.templateID, "alias" in json]).toEqual([201, image, false]);
    }
  });
});

describe("a creation is refused", () => {
  const many = Object.fromEntries(Array.from({ length: 65 }, (_, at) => [`k${at}`, "v"]));
  heldTest.each([
    [{ timeout: 0 }, "timeout"],
    [{ timeout: -5 }, "timeout"],
    [{ timeout: 86_401 }, "timeout"],
    [{ timeout: "300" }, "timeout"],
    [{ autoPauseMemory: false }, "autoPauseMemory"],
    [{ autoPause: true, autoPauseMemory: false, autoResume: { enabled: true } }, "autoPauseMemory"],
    [{ iam: { tokens: { a: {} } } }, "iam.tokens"],
    [{ volumeMounts: [{ name: "v", path: "/v" }] }, "volumeMounts"],
    [{ network: { egressProxy: { address: "p:1" } } }, "network.egressProxy"],
    [{ network: { rules: { "a.example": [{ transform: {} }] } } }, "network.rules"],
    [{ metadata: { a: 1 } }, "metadata"],
    [{ metadata: many }, "metadata"],
    [{ metadata: { a: "x".repeat(8192) } }, "metadata"],
    [{ envVars: { a: 1 } }, "envVars"],
    [{ templateID: 5 }, "templateID"],
  ])("%j", async (body, field) => {
    const { status, json } = await create(body);
    expect([status, json]).toEqual([400, { code: 400, message: expect.stringContaining(field) }]);
  });

  heldTest("for a template that the account does not have", async () => {
    for (const templateID of ["nope", "nope:1", Bun.randomUUIDv7()]) {
      const { status, json } = await create({ templateID });
      expect([status, json.code]).toEqual([404, 404]);
    }
    const foreign = await scene.call("POST", "/v2/sandboxes", { key: scene.foreignKey, json: { templateID: "base" } });
    expect(foreign.status).toBe(404);
  });

  heldTest("without a key", async () => {
    const { status, json } = await scene.call("POST", "/v2/sandboxes", { key: null, json: { templateID: "base" } });
    expect([status, json.code]).toEqual([401, 401]);
  });
});

describe("a creation with a key of its own", () => {
  const keyed = (key: string, body: Readonly<Record<string, unknown>> = {}) => create(body, { "idempotency-key": key });

  heldTest("makes one sandbox, however often it is sent", async () => {
    const both = await Promise.all([keyed("one", { timeout: 60 }), keyed("one", { timeout: 60 })]);
    const third = await keyed("one", { timeout: 60 });
    expect(new Set([...both, third].map(({ json }) => json.sandboxID)).size).toBe(1);
    expect([...both, third].map(({ status }) => status)).toEqual([201, 201, 201]);
    const other = await keyed("one", { timeout: 61 });
    expect([other.status, other.json.code]).toEqual([422, 422]);
    expect((await keyed("two", { timeout: 60 })).json.sandboxID).not.toBe(third.json.sandboxID);
  });

  heldTest("is refused when the key is not one", async () => {
    for (const key of ["a b", "x".repeat(256)]) expect((await keyed(key)).status).toBe(400);
  });
});
