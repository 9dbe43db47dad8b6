/** Programs of templates that start with each machine, starts that fail, and what tokens permit. */
import { afterAll, beforeAll, describe, expect } from "bun:test";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { updateRecord } from "../../../src/db/e2b/records.ts";
import { countLiveSandboxes, findSandbox, updateSandbox } from "../../../src/db/sandboxes/rows.ts";
import { beginBuild, endBuild } from "../../../src/db/templates/builds.ts";
import type { AccountId } from "../../../src/domain/ids.ts";
import { checkProcess } from "../../../src/domain/spawn.ts";
import { keyOfToken } from "../../../src/service/e2b/keys.ts";
import type { Principal } from "../../../src/service/parts.ts";
import { heldTest } from "../../support/api/program.ts";
import { E2bScene } from "../../support/e2b/scene.ts";
import { throwing } from "../../support/failures.ts";
import { until } from "../../support/waiting.ts";

const ALICE = "alice" as AccountId;
let scene: E2bScene;
let directory: string;
beforeAll(async () => {
  scene = await E2bScene.start();
  directory = await mkdtemp(join(tmpdir(), "coppice-ready-"));
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

const post = (id: string, action: string, json: unknown = {}) =>
  scene.call("POST", `/sandboxes/${id}/${action}`, { json });

describe("a sandbox whose template has programs", () => {
  heldTest("is created when its start program is ready, and counts for the template", async () => {
    const { db } = scene.api.parts;
    const { templateID, buildID } = (await scene.call("POST", "/v3/templates", { json: { name: "web" } })).json;
    const [asked, ready] = [join(directory, "web-asked"), join(directory, "web-ready")];
    const config = {
      ...{ user: null, cwd: "/", env: { ASKED: asked }, vcpus: 1, memoryBytes: 268_435_456 },
      startCmd: `until test -e $ASKED; do sleep 0.05; done; shopt -q login_shell && touch ${ready}`,
      readyCmd: `shopt -q login_shell && touch $ASKED; [[ -e ${ready} ]]`,
    };
    const imageId = findSandbox(db, (await scene.create()).uuid)?.imageId;
    if (imageId == null || !beginBuild(db, buildID)) throw new Error("there is no build");
    endBuild(db, buildID, { imageId, config }, { log: [], now: Date.now() });
    const request = { json: { templateID: "web" }, headers: { "idempotency-key": "web" } };
    const { status, json } = await scene.call("POST", "/v2/sandboxes", request);
    expect((await scene.call("POST", "/v2/sandboxes", request)).json).toEqual(json);
    expect([status, json.templateID, json.alias, existsSync(ready)]).toEqual([201, templateID, "web", true]);
    expect((await scene.call("GET", `/sandboxes/${json.sandboxID}`)).json.memoryMB).toBe(256);
    const { json: template } = await scene.call("GET", "/templates/web");
    expect(template).toMatchObject({ spawnCount: 1, lastSpawnedAt: expect.any(String) });
    for (const named of [templateID, "web"]) {
      const listed = (await scene.call("GET", `/v2/sandboxes?template=${named}`)).json;
      expect(listed.map(({ sandboxID }: { sandboxID: string }) => sandboxID)).toEqual([json.sandboxID]);
    }
  });

  heldTest("is resumed when its start program is ready", async () => {
    const { db } = scene.api.parts;
    const { id, uuid } = await scene.create();
    const [asked, ready] = [join(directory, "asked"), join(directory, "ready")];
    // It is ready only after the other program was asked once.
    const boot = `until test -e ${asked}; do sleep 0.05; done; touch ${ready}`;
    const command = `touch ${asked}; test -e ${ready}`;
    updateSandbox(db, uuid, { boot: checkProcess({ command: boot, shell: true, cwd: "/" }) });
    updateRecord(db, uuid, { readiness: { command, user: null, cwd: "/" } });
    expect((await post(id, "pause")).status).toBe(204);
    expect(existsSync(asked)).toBe(false);
    expect([(await post(id, "connect")).status, existsSync(ready)]).toEqual([201, true]);
  });
});

describe("a sandbox that has failed", () => {
  heldTest("is gone, and the next creation gives its place back", async () => {
    const { db, lives } = scene.api.parts;
    const { id, uuid } = await scene.create();
    lives.journal.change(uuid, "fail", { reason: "machine" });
    expect((await scene.call("GET", `/sandboxes/${id}`)).status).toBe(404);
    expect((await post(id, "connect")).status).toBe(404);
    const before = countLiveSandboxes(db, ALICE);
    const next = await scene.create();
    expect([countLiveSandboxes(db, ALICE), next.state, scene.stateOf(uuid)]).toEqual([...[before, "running", "ended"]]);
  });

  heldTest("can be deleted", async () => {
    const { id, uuid } = await scene.create();
    scene.api.parts.lives.journal.change(uuid, "fail", { reason: "machine" });
    expect((await scene.call("DELETE", `/sandboxes/${id}`)).status).toBe(204);
  });

  heldTest("while it was created leaves nothing, and the creation can be repeated", async () => {
    const { db, lives } = scene.api.parts;
    const before = countLiveSandboxes(db, ALICE);
    const failing = lives.journal.listen(({ row: { id, state } }) => {
      if (state !== "starting") return;
      const error = { error: "unavailable", message: "no machine", details: {} } as const;
      queueMicrotask(() => lives.journal.change(id, "fail", { reason: "machine", error }));
    });
    const create = () =>
      scene.call("POST", "/v2/sandboxes", { json: { templateID: "base" }, headers: { "idempotency-key": "again" } });
    const failed = await create();
    failing[Symbol.dispose]();
    expect([failed.status, failed.json]).toEqual([503, { code: 503, message: "no machine" }]);
    expect(countLiveSandboxes(db, ALICE)).toBe(before);
    expect((await create()).status).toBe(201);
  });
});

describe("a sandbox whose client leaves before its answer", () => {
  const PRINCIPAL: Principal = { accountId: ALICE, grants: new Set(["*"]), tokenId: "" };
  const LEFT = AbortSignal.abort(new Error("the client has left"));
  const HERE = new AbortController().signal;
  const open = (signal: AbortSignal, key: string | null) =>
    scene.api.parts.service.e2b.open(PRINCIPAL, {
      ...{ template: "base", timeoutSeconds: 86_400, onTimeout: "end", autoResume: false, env: () => ({}) },
      ...{ metadata: {}, network: "none", allowInternetAccess: null, autoPauseMemory: true, recordedNetwork: null },
      ...{ creation: key === null ? null : { key, bodyHash: "" }, signal },
    });
  const countLive = () => countLiveSandboxes(scene.api.parts.db, ALICE);

  heldTest("is ended", async () => {
    const before = countLive();
    for (const key of [null, "left"]) expect(await throwing(open(LEFT, key))).toThrow("the client has left");
    expect(countLive()).toBe(before);
    expect((await open(HERE, "left")).sandbox.state).toBe("running");
  });

  heldTest("lives when the client has repeated its request, and when it knows the sandbox", async () => {
    const [left, answer] = await Promise.all([throwing(open(LEFT, "twice")), open(HERE, "twice")]);
    expect(left).toThrow("the client has left");
    expect(await throwing(open(LEFT, "twice"))).toThrow("the client has left");
    expect(scene.stateOf(answer.sandbox.id)).toBe("running");
  });
});

describe("a token", () => {
  const keyed = async (scopes: readonly string[]) => keyOfToken(await scene.api.issue("alice", scopes));

  heldTest("without the scope for programs gets no token of the agent", async () => {
    const { id } = await scene.create();
    const key = await keyed(["instances:spawn", "instances:read"]);
    const json = { templateID: "base" };
    for (const [path, body] of [
      ["/v2/sandboxes", json],
      [`/sandboxes/${id}/connect`, {}],
      [`/sandboxes/${id}/resume`, {}],
    ] as const) {
      const answer = await scene.call("POST", path, { key, json: body });
      expect([path, answer.status, answer.json.code]).toEqual([path, 403, 403]);
    }
    const detail = await scene.call("GET", `/sandboxes/${id}`, { key });
    expect([detail.status, "envdAccessToken" in detail.json]).toEqual([200, false]);
  });

  heldTest("that only reads changes nothing", async () => {
    const { id } = await scene.create();
    const key = await keyed(["instances:read"]);
    for (const action of ["timeout", "refreshes", "connect", "pause", "resume"]) {
      const { status } = await scene.call("POST", `/sandboxes/${id}/${action}`, { key, json: { timeout: 9 } });
      expect([action, status]).toEqual([action, 403]);
    }
    expect((await scene.call("DELETE", `/sandboxes/${id}`, { key })).status).toBe(403);
    expect((await scene.call("GET", "/v2/sandboxes", { key: await keyed(["files:read"]) })).status).toBe(403);
  });

  heldTest("that may not make ports public gets a sandbox with private ones", async () => {
    const key = await keyed(["instances:spawn", "instances:exec", "instances:read"]);
    const { status, json } = await scene.call("POST", "/v2/sandboxes", { key, json: { templateID: "base" } });
    expect([status, json.trafficAccessToken]).toEqual([201, expect.stringMatching(/^[a-z2-7]{52}$/)]);
    await until("it runs", () => scene.sandbox(json.sandboxID, "").state === "running");
  });
});
