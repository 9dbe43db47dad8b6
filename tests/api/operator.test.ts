import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { tokens } from "../../src/db/schema.ts";
import { insertToken, revokeToken } from "../../src/db/tokens.ts";
import { ACCOUNT_LIMITS } from "../../src/domain/account/limits.ts";
import type { AccountId, OperationId } from "../../src/domain/ids.ts";
import { createLog } from "../../src/log.ts";
import { Api, type CallOptions, errorOf } from "../support/api/api.ts";
import { APPLIANCE_BUDGET, emptyApplianceParts } from "../support/api/appliance-parts.ts";
import { heldTest } from "../support/api/program.ts";
import { UNKNOWN_UUID } from "../support/api/samples.ts";

const HOUR_MS = 3_600_000;
const PATHS = ["tokens", "load", "space", "collection", "health"].map((name) => `/v1/operator/${name}`);

let api: Api;
let token: string;
beforeAll(async () => {
  api = await Api.start();
  token = await api.issue("root", ["operator"]);
});
afterAll(() => api[Symbol.asyncDispose]());

const get = async (path: string) => (await api.call("GET", `/v1/operator/${path}`, { token })).json;
const send = (method: string, path: string, body?: unknown, options: CallOptions = {}) =>
  api.call(method, `/v1/operator/${path}`, {
    token,
    ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
    ...options,
  });
const idOf = (text: string) => JSON.parse(Buffer.from(text.split(".")[1] ?? "", "base64url").toString()).jti as string;

describe("the scope", () => {
  test("is needed to read or change anything, `*` does not include it, and refusals reveal nothing", async () => {
    for (const grants of [["*"], ["operations:read", "images:read"]]) {
      const others = await api.issue("mallory", grants);
      for (const path of PATHS) {
        const { details } = errorOf(await api.call("GET", path, { token: others }), "forbidden");
        expect(details).toEqual({ scope: "operator" });
      }
      const request = { account: "mallory", scopes: ["operator"] };
      errorOf(await send("POST", "tokens", request, { token: others }), "forbidden");
      // Refused before the body is read.
      errorOf(await send("POST", "tokens", { account: 1 }, { token: others }), "forbidden");
      errorOf(await send("POST", "collection", undefined, { token: others }), "forbidden");
      errorOf(await send("DELETE", `tokens/${idOf(token)}`, undefined, { token: others }), "forbidden");
      errorOf(await send("DELETE", `tokens/${UNKNOWN_UUID}`, undefined, { token: others }), "forbidden");
    }
    for (const path of PATHS) errorOf(await api.call("GET", path, { token: null }), "unauthorized");
    expect(
      (await get("tokens?account=mallory")).every(({ scopes }: { scopes: string[] }) => !scopes.includes("operator")),
    ).toBe(true);
  });

  test("gives no other access to other accounts", async () => {
    const image = await api.addImage([[{ path: "f", type: "f", content: "x" }]], { account: "alice", tag: "mine" });
    for (const path of ["/v1/images", `/v1/images/${image}`, "/v1/operations"]) {
      errorOf(await api.call("GET", path, { token }), "forbidden");
    }
    const everything = await api.issue("root", ["*", "operator"]);
    errorOf(await api.call("GET", `/v1/images/${image}`, { token: everything }), "not_found");
    expect((await api.call("GET", "/v1/operator/load", { token: everything })).status).toBe(200);
  });
});

describe("tokens", () => {
  test("are created, work at once, are listed without their secret, and end when they are revoked", async () => {
    const answer = await send("POST", "tokens", { account: "carol", scopes: ["images:read", "*", "*"], ttl: 3600 });
    const { token: secret, ...row } = answer.json;
    expect([answer.status, answer.headers.get("cache-control")]).toEqual([201, "no-store"]);
    expect(row).toMatchObject({ account: "carol", scopes: ["images:read", "*"], state: "valid", current: false });
    expect(Date.parse(row.expires_at) - Date.parse(row.issued_at)).toBe(HOUR_MS);
    expect(idOf(secret)).toBe(row.uuid);
    expect((await api.call("GET", "/v1/images", { token: secret })).json).toEqual([]);

    const listed = await api.call("GET", "/v1/operator/tokens?account=carol", { token });
    expect(listed.json).toEqual([row]);
    expect(listed.text).not.toContain("eyJ");

    const path = `tokens/${row.uuid.toUpperCase()}`;
    expect((await send("DELETE", path)).status).toBe(204);
    errorOf(await api.call("GET", "/v1/images", { token: secret }), "unauthorized");
    expect((await send("DELETE", path)).status).toBe(204);
    expect(await get("tokens?account=carol&state=revoked")).toEqual([{ ...row, state: "revoked" }]);
    expect(await get("tokens?account=carol&state=valid")).toEqual([]);
  });

  test("the one of the request is marked, and may revoke itself", async () => {
    const own = await api.issue("ann", ["operator"]);
    const marked = (await api.call("GET", "/v1/operator/tokens", { token: own })).json;
    expect(marked.filter(({ current }: { current: boolean }) => current)).toMatchObject([{ uuid: idOf(own) }]);
    expect((await send("DELETE", `tokens/${idOf(own)}`, undefined, { token: own })).status).toBe(204);
    errorOf(await api.call("GET", "/v1/operator/tokens", { token: own }), "unauthorized");
  });

  test("pages, states and times", async () => {
    for (let index = 0; index < 3; index++) await api.issue("dave", ["files:read"], (index + 1) * HOUR_MS);
    const all = await get("tokens?account=dave");
    expect(all).toHaveLength(3);
    expect(await get("tokens?account=dave&limit=1&offset=1")).toEqual([all[1]]);
    expect(await get("tokens?account=dave&offset=3")).toEqual([]);
    expect(await get("tokens?account=unknown")).toEqual([]);
    const past = Date.now() - HOUR_MS;
    const row = { jti: Bun.randomUUIDv7(), accountId: "eve" as AccountId, scopes: ["*"], keyId: "gone" };
    insertToken(api.parts.db, { ...row, issuedAt: past, expiresAt: past + 1000 });
    expect(await get("tokens?account=eve&state=expired")).toMatchObject([{ uuid: row.jti, state: "expired" }]);
    expect(await get("tokens?account=eve&state=valid")).toEqual([]);
  });

  test("are valid for 30 days unless the request says otherwise", async () => {
    const { issued_at, expires_at } = (await send("POST", "tokens", { account: "frank", scopes: ["files:read"] })).json;
    expect(Date.parse(expires_at) - Date.parse(issued_at)).toBe(30 * 24 * HOUR_MS);
  });

  test.each([
    ["account", { account: "" }],
    ["account", { account: "a b" }],
    ["account", { account: "x".repeat(129) }],
    ["account", { account: undefined }],
    ["scopes", { scopes: [] }],
    ["scopes", { scopes: "operator" }],
    ["scopes", { scopes: undefined }],
    ["scopes", { scopes: new Array(40).fill("*") }],
    ["scopes.0", { scopes: ["images:write"] }],
    ["scopes.1", { scopes: ["*", null] }],
    ["ttl", { ttl: 0 }],
    ["ttl", { ttl: 1.5 }],
    ["ttl", { ttl: "30d" }],
    ["ttl", { ttl: 315_360_001 }],
  ])("a wrong %s is refused: %j", async (field, change) => {
    const answer = await send("POST", "tokens", { account: "grace", scopes: ["*"], ttl: 60, ...change });
    expect(errorOf(answer, "validation_error").details).toMatchObject({ field });
    expect(await get("tokens?account=grace")).toEqual([]);
  });

  test.each(["limit=0", "limit=1001", "offset=-1", "state=dead", "state="])("a wrong %s is refused", async (query) => {
    errorOf(await api.call("GET", `/v1/operator/tokens?${query}`, { token }), "validation_error");
  });

  test("an unknown one is not found, and a malformed id is refused", async () => {
    errorOf(await send("DELETE", `tokens/${UNKNOWN_UUID}`), "not_found");
    errorOf(await send("DELETE", "tokens/x"), "validation_error");
  });

  test("an account has a bounded number of valid ones", async () => {
    const { db } = api.parts;
    const now = Date.now();
    const times = { issuedAt: now, expiresAt: now + HOUR_MS };
    const full = (index: number) => ({
      ...{ jti: `full-${index}`, accountId: "full" as AccountId, scopes: ["*"], keyId: "k", ...times },
    });
    insertToken(db, full(0));
    // One write to the disk for all others.
    const others = Array.from({ length: ACCOUNT_LIMITS.tokens.max - 1 }, (_, index) => full(index + 1));
    db.transaction((tx) => void tx.insert(tokens).values(others).run());
    const request = { account: "full", scopes: ["files:read"] };
    expect(errorOf(await send("POST", "tokens", request), "conflict").details).toEqual({ account: "full" });
    revokeToken(db, "full-0", now);
    expect((await send("POST", "tokens", request)).status).toBe(201);
  });
});

describe("the appliance", () => {
  heldTest("load: what each account holds of the budget, and what waits", async () => {
    const clock = Date.now;
    const appliance = emptyApplianceParts("/nonexistent", clock);
    await using own = await Api.start({ appliance });
    const operator = await own.issue("root", ["operator"]);
    const read = async (query = "") => (await own.call("GET", `/v1/operator/load${query}`, { token: operator })).json;
    const idle = { memory_bytes: { budget: APPLIANCE_BUDGET.memoryBytes, used: 0 }, vcpus: { budget: 8, used: 0 } };
    expect(await read()).toEqual({
      ...idle,
      machines: { in_use: 0, waiting: 1, ready: 1, pool_size: 2 },
      accounts: [],
    });
    const running = own.operations.insert("alice" as AccountId, "instance");
    own.operations.start(running.id as OperationId);
    own.operations.insert("bob" as AccountId, "instance");
    own.operations.insert("bob" as AccountId, "image_import");
    const cost = { memoryBytes: 1_073_741_824, vcpus: 2 };
    using _ticket = await appliance.scheduler.admit("alice", cost, new AbortController().signal);
    const bob = { account: "bob", executing: 0, pending: 2, oldest_pending_at: expect.any(String) };
    const { accounts, memory_bytes, vcpus } = await read();
    expect([memory_bytes.used, vcpus.used]).toEqual([cost.memoryBytes, 2]);
    expect(accounts).toEqual([
      { account: "alice", executing: 1, pending: 0, memory_bytes: cost.memoryBytes, vcpus: 2 },
      { ...bob, memory_bytes: 0, vcpus: 0 },
    ]);
    expect((await read("?limit=1")).accounts).toHaveLength(1);
    errorOf(await own.call("GET", "/v1/operator/load?limit=1001", { token: operator }), "validation_error");
  });

  test("space: the disk, the sums, the accounts and the largest images", async () => {
    await using own = await Api.start();
    const operator = await own.issue("root", ["operator"]);
    const small = await own.addImage([[{ path: "s", type: "f", content: "x" }]], { account: "alice" });
    const base = await own.addImage([[{ path: "b", type: "f", content: "y".repeat(200_000) }]], {
      account: "bob",
      tag: "base",
    });
    const run = await own.addRun(base, [{ path: "r", type: "f", content: "z" }], { account: "bob" });
    const read = async (query = "") => (await own.call("GET", `/v1/operator/space${query}`, { token: operator })).json;
    const { disk, stored, accounts, images } = await read();
    expect(disk.free_bytes).toBeWithin(1, disk.total_bytes);
    expect(disk.reserve_bytes).toBe(1);
    expect(stored).toMatchObject({ images: 3, layers: 3, files: 0, file_bytes: 0 });
    expect(accounts.map(({ account }: { account: string }) => account)).toEqual(["bob", "alice"]);
    expect(accounts[0]).toMatchObject({ images: 2, files: 0, merged_layer_bytes: 0 });
    const sum = (key: "layer_bytes" | "size_bytes", rows: Record<string, number>[]) =>
      rows.reduce((all, row) => all + (row[key] ?? 0), 0);
    expect(sum("layer_bytes", accounts)).toBe(stored.layer_bytes);
    expect(images[0]).toMatchObject({ uuid: base, account: "bob", tag: "base" });
    expect(images.map(({ uuid }: { uuid: string }) => uuid).sort()).toEqual([small, base, run].sort());
    const first = await read("?limit=1");
    expect([first.accounts, first.images]).toEqual([[accounts[0]], [images[0]]]);
    errorOf(await own.call("GET", "/v1/operator/space?limit=0", { token: operator }), "validation_error");
  });

  heldTest("collection: what it would free, and then frees", async () => {
    const clock = Date.now;
    const appliance = {
      ...emptyApplianceParts("/nonexistent", clock),
      retention: { untaggedTtlMs: HOUR_MS, filesTtlMs: null, memoryTtlMs: 86_400_000 },
    };
    await using own = await Api.start({ appliance });
    const operator = await own.issue("root", ["operator"]);
    const call = async (method: string) =>
      (await own.call(method, "/v1/operator/collection", { token: operator })).json;
    const at = Date.now() - 2 * HOUR_MS;
    const expired = await own.addImage([[{ path: "old", type: "f", content: "x".repeat(100_000) }]], { at });
    const kept = await own.addImage([[{ path: "new", type: "f", content: "x" }]], { at, tag: "kept" });
    const seen = await call("GET");
    expect(seen).toMatchObject({ images: 1, layers: 1, files: 0, file_bytes: 0, images_untagged_ttl: 3600 });
    expect(seen.bytes).toBeGreaterThan(0);
    expect(seen).not.toHaveProperty("files_ttl");
    const [one, other] = await Promise.all([call("POST"), call("POST")]);
    expect([one, other]).toEqual([seen, seen]);
    errorOf(await own.call("GET", `/v1/images/${expired}`), "not_found");
    expect((await own.call("GET", `/v1/images/${kept}`)).status).toBe(200);
    expect(await call("GET")).toMatchObject({ images: 0, layers: 0, bytes: 0 });
  });

  test("health: the findings of doctor, shared by all callers", async () => {
    const [one, other] = await Promise.all([get("health"), get("health")]);
    expect(one).toEqual(other);
    const names = one.findings.map(({ name }: { name: string }) => name);
    expect(names).toEqual(
      expect.arrayContaining(["processor", "kvm", "skopeo", "name servers", "cgroups", "appliance"]),
    );
    const states = one.findings.map(({ state }: { state: string }) => state);
    expect(one.healthy).toBe(!states.includes("problem"));
    expect(Date.now() - Date.parse(one.checked_at)).toBeLessThan(60_000);
    expect(await get("health")).toEqual(one);
  }, 60_000);

  heldTest("nothing of the host is in the description, in errors, or in what needs no token", async () => {
    const texts = await Promise.all(
      ["/openapi.json", "/docs", "/readyz", "/healthz"].map(
        async (path) => (await api.call("GET", path, { token: null })).text,
      ),
    );
    expect(texts.join()).not.toContain(api.parts.layout.root);
  });
});

heldTest("the changes of an operator are in the log, with the operator and without the secret", async () => {
  const lines: string[] = [];
  const log = createLog({ level: "info", format: "json", write: (line) => void lines.push(line) });
  await using own = await Api.start({ log });
  const operator = await own.issue("root", ["operator"]);
  const headers = { "content-type": "application/json" };
  const body = JSON.stringify({ account: "carol", scopes: ["operator"], ttl: 60 });
  const created = (await own.call("POST", "/v1/operator/tokens", { token: operator, body, headers })).json;
  await own.call("DELETE", `/v1/operator/tokens/${created.uuid}`, { token: operator });
  await own.call("DELETE", `/v1/operator/tokens/${created.uuid}`, { token: operator });
  await own.call("POST", "/v1/operator/collection", { token: operator });
  const by = { account: "root", token_id: idOf(operator) };
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { message: "an operator made a token", ...by, made_id: created.uuid, made_for: "carol", scopes: ["operator"] },
    { message: "an operator revoked a token", ...by, revoked_id: created.uuid, revoked_for: "carol" },
    { message: "an operator collects space", ...by },
    { message: "space was collected for an operator", ...by, images: 0 },
  ]);
  expect(lines.join("")).not.toContain("eyJ");
  // A refused request changes nothing, so it has no line.
  await own.call("POST", "/v1/operator/collection");
  expect(lines).toHaveLength(4);
});
