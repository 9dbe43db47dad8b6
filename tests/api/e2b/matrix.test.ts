/** Permissions on the listener for clients of E2B: every route, with keys, scopes and objects that are not the caller's. */

import { afterAll, beforeAll, describe, expect } from "bun:test";
import { sql } from "drizzle-orm";
import { createE2bApp } from "../../../src/api/e2b/app.ts";
import { UPLOAD_PREFIX } from "../../../src/api/e2b/principal.ts";
import { isEnvdPath } from "../../../src/api/e2b/routing.ts";
import { revokeToken } from "../../../src/db/tokens.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { SCOPES, type Scope } from "../../../src/domain/scope.ts";
import { keyOfToken } from "../../../src/service/e2b/keys.ts";
import { heldTest } from "../../support/api/program.ts";
import { rawAnswer } from "../../support/api/raw.ts";
import { finishCheckpoint } from "../../support/api/sandboxes.ts";
import { E2B_SAMPLES, type E2bSample, type OwnObjects } from "../../support/e2b/samples.ts";
import { type E2bSandbox, E2bScene } from "../../support/e2b/scene.ts";

/** Objects that no account has. */
const UNKNOWN: OwnObjects = {
  ...{ sandbox: "0197a1d05a5e700080003c6e0b8a9c15", template: "a".repeat(20), snapshot: "nowhere" },
  ...{ build: "0197a1d0-5a5e-4000-8000-3c6e0b8a9c15", image: "0197a1d0-5a5e-7000-8000-3c6e0b8a9c16" },
};

let scene: E2bScene;
let sandbox: E2bSandbox;
let own: OwnObjects;
/** objects of the other account */
let theirs: Pick<OwnObjects, "template" | "build">;

beforeAll(async () => {
  scene = await E2bScene.start();
  sandbox = await scene.create();
  const build = async (key: string) => {
    const { templateID, buildID } = (await scene.call("POST", "/v3/templates", { key, json: { name: "matrix" } })).json;
    return { template: templateID as string, build: buildID as string };
  };
  const [image, snapshot] = await Promise.all([
    finishCheckpoint(scene.api, sandbox.uuid),
    scene.call("POST", `/sandboxes/${sandbox.id}/snapshots`, { json: { name: "matrix-snapshot" } }),
  ]);
  own = { ...(await build(scene.key)), sandbox: sandbox.id, snapshot: snapshot.json.snapshotID, image };
  theirs = await build(scene.foreignKey);
});
afterAll(async () => {
  expect(scene.errors).toEqual([]);
  await scene[Symbol.asyncDispose]();
});

const pathOf = ({ route, path, names: [first = "sandbox"] = [] }: E2bSample, objects: OwnObjects): string =>
  path?.(objects) ?? route.replace(/:\w+/, objects[first]);
const call = (sample: E2bSample, objects: OwnObjects, key: string | null, headers: Record<string, string> = {}) => {
  const json = sample.json?.(objects);
  return scene.call(sample.method, pathOf(sample, objects), { key, headers, ...(json === undefined ? {} : { json }) });
};
const keyWith = async (scopes: readonly Scope[]) => keyOfToken(await scene.api.issue("alice", scopes));

/** All rows of the database but those of tokens. */
function rows(): string {
  const { orm } = scene.api.parts.db;
  const tables = orm.all<{ name: string }>(
    sql`select name from sqlite_master where type = 'table' and name <> 'tokens'`,
  );
  return JSON.stringify(
    tables.map(({ name }) => [name, orm.all(sql`select * from ${sql.identifier(name)}`)]),
    (_, value) => (typeof value === "bigint" ? String(value) : value),
  );
}

/** The objects that a request of a stranger names, one kind after another, and the same with objects that do not exist. */
function strange(sample: E2bSample): [OwnObjects, OwnObjects][] {
  const { names = [] } = sample;
  const [first = "sandbox"] = names;
  return names.map((kind) => {
    // A build of another account is not found in an own template either.
    if (kind === "build")
      return [
        { ...own, ...theirs, build: own.build },
        { ...own, ...theirs, build: UNKNOWN.build },
      ];
    return [
      { ...own, [first]: own[kind] },
      { ...UNKNOWN, [first]: UNKNOWN[kind] },
    ];
  });
}

const routes = () => {
  const { service } = scene.api.parts;
  const settings = { domain: null, defaultUser: "user", hasPublicPorts: true };
  return createE2bApp({ service, settings, accounts: new Accounts() } as never).routes;
};

heldTest("the matrix has every route", () => {
  const covered = E2B_SAMPLES.map(({ method, route }) => `${method} ${route}`).sort();
  const served = routes().filter(({ path }) => !isEnvdPath(path) && !path.startsWith(UPLOAD_PREFIX));
  expect(served.map(({ method, path }) => `${method} ${path}`).sort()).toEqual(covered);
});

describe("every route refuses", () => {
  heldTest("a request without a valid key", async () => {
    const revoked = await scene.api.issue("alice", ["*"]);
    const { jti } = JSON.parse(Buffer.from(revoked.split(".")[1] ?? "", "base64url").toString());
    revokeToken(scene.api.parts.db, jti, Date.now());
    const expired = await scene.api.issue("alice", ["*"], 1000);
    scene.api.parts.clock.offsetMs += 2000;
    const { key } = scene;
    const keys = [
      ...[null, "", "x", "e2b_", "a.b.c", revoked, expired, keyOfToken(revoked), keyOfToken(expired)],
      ...[key.slice(0, -1), key.slice(0, -2), `${key}00`, key.toUpperCase(), `e2b_${key.slice(4).toUpperCase()}`],
      ...[
        `E2B_${key.slice(4)}`,
        `${key} ${key}`,
        `${key}, ${key}`,
        `Bearer ${key}`,
        "e2b_00",
        `e2b_${"61".repeat(7000)}`,
      ],
      ...[sandbox.token, keyOfToken(sandbox.token), keyOfToken(key)],
    ];
    const before = rows();
    for (const sample of E2B_SAMPLES) {
      for (const wrong of keys) {
        const { status, json } = await call(sample, own, wrong);
        expect([sample, wrong?.slice(0, 20), status, json.code]).toEqual([sample, wrong?.slice(0, 20), 401, 401]);
      }
      const bearer = await call(sample, own, null, { authorization: `Bearer ${scene.api.token}` });
      expect([sample, bearer.status]).toEqual([sample, 401]);
      const twice = { "X-API-Key": key, "x-api-key": key };
      expect((await rawAnswer(scene.url, sample.method, pathOf(sample, own), twice)).status).toBe(401);
    }
    expect(rows()).toBe(before);
  });

  heldTest("a key without one of its scopes", async () => {
    const before = rows();
    for (const sample of E2B_SAMPLES) {
      for (const missing of sample.scopes) {
        const key = await keyWith(SCOPES.filter((scope) => scope !== missing));
        const { status, json } = await call(sample, own, key);
        expect([sample, missing, status, json.code]).toEqual([sample, missing, 403, 403]);
      }
    }
    expect(rows()).toBe(before);
  });

  heldTest("objects of another account, in the words for those that do not exist", async () => {
    const before = rows();
    for (const sample of E2B_SAMPLES) {
      for (const [foreign, unknown] of strange(sample)) {
        const [answer, expected] = [
          await call(sample, foreign, scene.foreignKey),
          await call(sample, unknown, scene.foreignKey),
        ];
        expect([sample, answer.status]).toEqual([sample, sample.unknown ?? 404]);
        const plain = (text: string, objects: OwnObjects) =>
          Object.values(objects).reduce((rest, id) => rest.replaceAll(id, "ID"), text);
        expect([sample, plain(answer.text, foreign)]).toEqual([sample, plain(expected.text, unknown)]);
      }
    }
    expect(rows()).toBe(before);
    expect(sandbox.state).toBe("running");
  });
});

heldTest("a path that cannot be decoded names no object of any kind", async () => {
  for (const sample of E2B_SAMPLES.filter(({ names }) => names !== undefined)) {
    const path = pathOf(sample, { ...UNKNOWN, sandbox: "%zz", template: "%zz", snapshot: "%", image: "%a" });
    const { status } = await rawAnswer(scene.url, sample.method, path, { "X-API-Key": scene.key });
    expect([sample, status]).toEqual([sample, 400]);
  }
});

heldTest("the scopes of a route are enough", async () => {
  for (const sample of E2B_SAMPLES) {
    const { status } = await call(sample, UNKNOWN, await keyWith(sample.scopes));
    expect([sample, [401, 403].includes(status)]).toEqual([sample, false]);
  }
});

heldTest("a listing has nothing of another account", async () => {
  for (const sample of E2B_SAMPLES.filter(({ method, names = [] }) => method === "GET" && names.length === 0)) {
    const { status, text } = await call(sample, own, scene.foreignKey);
    expect([sample, status]).toEqual([sample, 200]);
    for (const id of Object.values(own)) expect([sample, text.includes(id)]).toEqual([sample, false]);
  }
});

heldTest("every route of an agent needs the token of its sandbox", async () => {
  const other = await scene.create();
  const traffic = await scene.api.parts.service.e2b.credentials.token("traffic", {
    sandboxId: sandbox.uuid,
    keyId: null,
  });
  const wrong = [
    null,
    "",
    "x",
    other.token,
    traffic,
    scene.key,
    scene.api.token,
    sandbox.token.toUpperCase(),
    `${sandbox.token}=`,
  ];
  for (const { method, path } of routes().filter(({ path }) => isEnvdPath(path) && path !== "/health")) {
    for (const token of wrong) {
      const { "x-access-token": _own, ...headers } = sandbox.headers();
      const proof = token === null ? {} : { "x-access-token": token };
      const body = method === "GET" ? {} : { json: {} };
      const { status, json } = await scene.call(method, path, {
        key: null,
        headers: { ...headers, ...proof },
        ...body,
      });
      expect([path, token, status, json.code]).toEqual([path, token, 401, 401]);
    }
  }
});
