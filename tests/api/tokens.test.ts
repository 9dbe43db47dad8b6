import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { createHmac } from "node:crypto";
import { readdir, stat } from "node:fs/promises";
import fc from "fast-check";
import { revokeToken } from "../../src/db/tokens.ts";
import { issueToken, tokenVerifier } from "../../src/service/tokens.ts";
import { TokenKeys } from "../../src/storage/token-keys.ts";
import { Api, errorOf } from "../support/api/api.ts";
import { heldTest } from "../support/api/program.ts";

const HOUR_MS = 3_600_000;

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const encode = (value: unknown) =>
  Buffer.from(typeof value === "string" ? value : JSON.stringify(value)).toString("base64url");
const decode = (part: string | undefined) => JSON.parse(Buffer.from(part ?? "", "base64url").toString());
const partsOf = (token: string) => {
  const [header, payload, signature] = token.split(".");
  return { header: decode(header), payload: decode(payload), signature: signature ?? "" };
};

/** Signs any claims with the service's newest key, so that only the tested claim is wrong. */
async function forge(header: object, payload: object, hash = "sha256"): Promise<string> {
  const { secret } = await api.parts.keys.signing();
  const text = `${encode(header)}.${encode(payload)}`;
  return `${text}.${createHmac(hash, secret).update(text).digest("base64url")}`;
}

const probe = (token: string) => api.call("GET", "/v1/images", { token });
const refused = async (token: string) =>
  expect(errorOf(await probe(token), "unauthorized").message).toBe("missing or invalid bearer token");

describe("a valid token", () => {
  // spec: auth.bearer
  test("has exactly the claims and the header that are documented", async () => {
    const { header, payload } = partsOf(api.token);
    expect(Object.keys(header).sort()).toEqual(["alg", "kid", "typ"]);
    expect(header.alg).toBe("HS256");
    expect(payload).toEqual({
      iss: "coppice",
      sub: "alice",
      jti: expect.any(String),
      iat: expect.any(Number),
      exp: expect.any(Number),
      scope: "*",
    });
  });

  test("signed by this test is accepted: the forged ones below fail for their own reasons", async () => {
    const { header, payload } = partsOf(api.token);
    expect((await probe(await forge(header, payload))).status).toBe(200);
  });

  // spec: auth.bearer
  test.each(["Bearer ", "bearer ", "BEARER  "])("scheme %j", async (scheme) => {
    expect((await api.call("GET", "/v1/images", { headers: { authorization: scheme + api.token } })).status).toBe(200);
  });

  // spec: auth.401
  test.each(["Basic ", "Token ", "", "Bearer", "Bearer a "])("not scheme %j", async (scheme) => {
    errorOf(await api.call("GET", "/v1/images", { headers: { authorization: scheme + api.token } }), "unauthorized");
  });
});

describe("401", () => {
  test('algorithm "none", in any spelling, with and without a signature', async () => {
    const { header, payload, signature } = partsOf(api.token);
    for (const alg of ["none", "None", "NONE", ""]) {
      const text = `${encode({ ...header, alg })}.${encode(payload)}`;
      await refused(`${text}.`);
      await refused(`${text}.${signature}`);
    }
  });

  test("another algorithm with the right key", async () => {
    const { header, payload } = partsOf(api.token);
    await refused(await forge({ ...header, alg: "HS384" }, payload, "sha384"));
    await refused(await forge({ ...header, alg: "HS512" }, payload, "sha512"));
    await refused(await forge({ ...header, alg: "RS256" }, payload));
  });

  test("a wrong key under a known kid, a known key under an unknown kid, no kid", async () => {
    const { header, payload } = partsOf(api.token);
    const text = `${encode(header)}.${encode(payload)}`;
    await refused(`${text}.${createHmac("sha256", "x".repeat(32)).update(text).digest("base64url")}`);
    for (const kid of [Bun.randomUUIDv7(), "../keys", "", `${header.kid}.retired`, 1, null, undefined]) {
      await refused(await forge({ ...header, kid }, payload));
    }
  });

  test("keys in the header, and unknown critical extensions", async () => {
    const { header, payload } = partsOf(api.token);
    const jwk = { kty: "oct", k: encode("x".repeat(32)) };
    const text = `${encode({ ...header, jwk, jku: "http://127.0.0.1:1/", kid: Bun.randomUUIDv7() })}.${encode(payload)}`;
    await refused(`${text}.${createHmac("sha256", "x".repeat(32)).update(text).digest("base64url")}`);
    await refused(await forge({ ...header, crit: ["x"], x: 1 }, payload));
  });

  // spec: auth.401
  test("any changed byte", async () => {
    await fc.assert(
      fc.asyncProperty(fc.nat(api.token.length - 1), fc.constantFrom("A", "b", "-", "_", "9"), async (index, char) => {
        fc.pre(api.token[index] !== char && api.token[index] !== ".");
        const changed = api.token.slice(0, index) + char + api.token.slice(index + 1);
        // Unused bits of a last base64 character can differ without the bytes differing.
        fc.pre(!sameBytes(changed, api.token));
        await refused(changed);
      }),
      { numRuns: 60 },
    );
  });

  test.each(["iss", "sub", "jti", "iat", "exp", "scope"])("without %s", async (claim) => {
    const { header, payload } = partsOf(api.token);
    const { [claim]: _removed, ...rest } = payload;
    await refused(await forge(header, rest));
  });

  test.each([
    ["another issuer", { iss: "other" }],
    ["another account than the token was made for", { sub: "bob" }],
    ["a subject that is not an account", { sub: "a b" }],
    ["a token id that is not recorded", { jti: Bun.randomUUIDv7() }],
    ["a token id of another type", { jti: 1 }],
    ["an end in the past", { exp: Math.floor(Date.now() / 1000) - 60 }],
    ["an end that is text", { exp: "9999999999" }],
    ["a beginning in the future", { nbf: Math.floor(Date.now() / 1000) + 60 }],
    ["issued in the future", { iat: Math.floor(Date.now() / 1000) + 60 }],
    ["a scope that is a list", { scope: ["*"] }],
  ])("%s", async (_name, change) => {
    const { header, payload } = partsOf(api.token);
    await refused(await forge(header, { ...payload, ...change }));
  });

  test("longer than 4 KiB", async () => {
    const { header, payload } = partsOf(api.token);
    const fits = await forge(header, { ...payload, extra: "x".repeat(2000) });
    expect((await probe(fits)).status).toBe(200);
    const long = await forge(header, { ...payload, extra: "x".repeat(4096) });
    expect(long.length).toBeGreaterThan(4096);
    await refused(long);
  });

  test("nonsense", async () => {
    await fc.assert(
      fc.asyncProperty(fc.stringMatching(/^[!-~]{1,60}$/), async (text) => {
        fc.pre(!text.includes(","));
        await refused(text);
      }),
      { numRuns: 60 },
    );
    for (const text of ["..", "a.b", "e30.e30.", `${api.token}.${api.token}`, `${encode("null")}.${encode("null")}.x`])
      await refused(text);
  });

  heldTest("expired: at its time", async () => {
    await using later = await Api.start();
    const { token: short } = await issueToken(later.parts.db, later.parts.keys, {
      account: "alice",
      scopes: ["*"],
      ttlMs: HOUR_MS,
      now: Date.now(),
    });
    later.parts.clock.offsetMs = HOUR_MS;
    errorOf(await later.call("GET", "/v1/images", { token: short }), "unauthorized");
    later.parts.clock.offsetMs = HOUR_MS - 60_000;
    expect((await later.call("GET", "/v1/images", { token: short })).status).toBe(200);
  });

  test("revoked", async () => {
    const token = await api.issue("alice", ["*"]);
    expect((await probe(token)).status).toBe(200);
    expect(revokeToken(api.parts.db, partsOf(token).payload.jti, Date.now())).toBe(true);
    await refused(token);
  });
});

test("authentication comes before everything else", async () => {
  const answer = await api.call("POST", "/v1/instances", {
    body: "{",
    token: null,
    headers: { "content-type": "application/json" },
  });
  errorOf(answer, "unauthorized");
  errorOf(await api.call("PUT", "/v1/images?limit=x", { token: null }), "unauthorized");
  errorOf(await api.call("POST", "/v1/files", { body: "x".repeat(5_000_000), token: null }), "unauthorized");
});

// spec: auth.403
test("permission is checked before the body and the query", async () => {
  const token = await api.issue("alice", ["files:read"]);
  const headers = { "content-type": "application/json" };
  errorOf(await api.call("POST", "/v1/instances", { body: "{", token, headers }), "forbidden");
  errorOf(await api.call("GET", "/v1/images?limit=x", { token }), "forbidden");
  expect(errorOf(await api.call("GET", "/v1/operations/x", { token }), "forbidden").details).toEqual({
    scope: "operations:read",
  });
});

describe("issuing", () => {
  test.each([
    ["account", { account: "" }],
    ["account", { account: "a b" }],
    ["account", { account: "-a" }],
    ["account", { account: "a".repeat(129) }],
    ["scope", { scopes: [] }],
    ["scope", { scopes: ["images:write"] }],
    ["ttl", { ttlMs: 999 }],
    ["ttl", { ttlMs: Number.NaN }],
  ])("refuses a wrong %s", async (field, change) => {
    const request = { account: "carol", scopes: ["*"], ttlMs: HOUR_MS, now: Date.now(), ...change };
    const issued = issueToken(api.parts.db, api.parts.keys, request).then(
      () => null,
      (error: { details: unknown }) => error.details,
    );
    expect(await issued).toMatchObject({ field });
  });
});

describe("keys", () => {
  test("are 32 random bytes each, for the owner only", async () => {
    const [name] = await readdir(api.parts.layout.keys);
    const { size, mode } = await stat(`${api.parts.layout.keys}/${name}`);
    expect(size).toBe(32);
    expect(mode & 0o777).toBe(0o600);
    expect((await stat(api.parts.layout.keys)).mode & 0o777).toBe(0o700);
  });

  test("rotation: old tokens are valid until the end of the grace period, new ones are signed by the new key", async () => {
    await using own = await Api.start();
    const { db, layout } = own.parts;
    let now = Date.now();
    const clock = () => now;
    const keys = await TokenKeys.open(layout.keys, clock);
    const verify = tokenVerifier(db, keys, clock);
    const issue = async () =>
      (await issueToken(db, keys, { account: "alice", scopes: ["*"], ttlMs: 100 * HOUR_MS, now })).token;
    const before = await issue();
    // Another process rotates and issues, as the command line does, just after the service has read the keys.
    expect(await verify(before)).not.toBeNull();
    const other = await TokenKeys.open(layout.keys, clock);
    const id = await other.rotate(HOUR_MS);
    const request = { account: "alice", scopes: ["*"], ttlMs: 100 * HOUR_MS, now };
    const after = (await issueToken(db, other, request)).token;
    expect(partsOf(after).header.kid).toBe(id);
    expect(partsOf(await issue()).header.kid).toBe(id);
    expect(await verify(before)).not.toBeNull();
    expect(await verify(after)).not.toBeNull();
    now += 2 * HOUR_MS;
    expect(await verify(before)).toBeNull();
    expect(await verify(after)).not.toBeNull();
    await other.rotate(0);
    expect(await verify(after)).toBeNull();
    // The key whose grace period is over is gone; the replaced one and the new one are there.
    expect((await readdir(layout.keys)).filter((name) => !name.endsWith(".retired"))).toHaveLength(2);
  });

  test("no change is missed, however fast, and a key that is removed while it is read is not a failure", async () => {
    await using own = await Api.start();
    const { layout } = own.parts;
    const [keys, other] = [await TokenKeys.open(layout.keys), await TokenKeys.open(layout.keys)];
    for (let round = 0; round < 50; round++) {
      const [id] = await Promise.all([other.rotate(0), keys.find("none"), keys.find("none")]);
      expect((await keys.find(id))?.id).toBe(id);
      expect((await keys.signing()).id).toBe(id);
    }
  });

  test("a restart keeps the keys", async () => {
    const reopened = await TokenKeys.open(api.parts.layout.keys);
    expect(await tokenVerifier(api.parts.db, reopened, Date.now)(api.token)).not.toBeNull();
  });
});

function sameBytes(one: string, other: string): boolean {
  const bytes = (token: string) => token.split(".").map((part) => Buffer.from(part, "base64url").toString("hex"));
  return bytes(one).join(".") === bytes(other).join(".");
}
