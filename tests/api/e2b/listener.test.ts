/** The listener for clients of E2B: what it answers by itself, and how it carries requests to the application. */

import { afterAll, beforeAll, describe, expect } from "bun:test";
import { statSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { revokeToken } from "../../../src/db/tokens.ts";
import type { AccountId } from "../../../src/domain/ids.ts";
import { TIMES } from "../../../src/ingress/times.ts";
import { run } from "../../../src/system/exec.ts";
import { heldTest } from "../../support/api/program.ts";
import { E2bScene } from "../../support/e2b/scene.ts";
import { Peer } from "../../support/ingress/scene.ts";
import { until } from "../../support/waiting.ts";

let scene: E2bScene;
const peers: Peer[] = [];
beforeAll(async () => {
  scene = await E2bScene.start();
});
afterAll(async () => {
  for (const { socket } of peers) socket.destroy();
  await scene[Symbol.asyncDispose]();
});

async function client(): Promise<Peer> {
  const peer = await Peer.connect(scene.port);
  peers.push(peer);
  return peer;
}

/** Sends bytes on a connection of its own; resolves to everything that is received up to its end. */
async function ask(bytes: string): Promise<string> {
  const peer = await client();
  peer.send(bytes);
  await peer.closed;
  return peer.text;
}

function request(start: string, ...fields: readonly string[]): string {
  return [`${start} HTTP/1.1`, ...fields, "", ""].join("\r\n");
}

const bodyOf = (text: string) => JSON.parse(text.split("\r\n\r\n")[1] ?? "");
const headOf = (text: string) => text.split("\r\n\r\n", 1)[0] ?? "";

describe("an answer to a load balancer", () => {
  heldTest("says that the listener is healthy, without a key", async () => {
    const { status, text } = await scene.call("GET", "/health", { key: null });
    expect([status, text]).toEqual([204, ""]);
  });
});

describe("an error has the shape of the dialect", () => {
  heldTest.each([
    ["GARBAGE\r\n\r\n", 400],
    [request("GET /"), 400],
    ["GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505],
    [request("TRACE /", "Host: a"), 405],
    [request("GET /", "Host: a", `X-A: ${"a".repeat(40_000)}`), 431],
    [request("GET /health", "Host: a", "Connection: close", ...Array(9).fill(`X-A: ${"a".repeat(2000)}`)), 431],
    [request("POST /", "Host: a", "Transfer-Encoding: gzip"), 501],
    [request("GET /", "Host: a", "Connection: close"), 401],
    [request("FOO /sandboxes", "Host: a", "Connection: close"), 405],
    [request("get /sandboxes", "Host: a", "Connection: close"), 405],
    [request("GET /metrics", "Host: a", "Connection: close"), 400],
  ])("%j", async (bytes, status) => {
    const text = await ask(bytes);
    expect(text).toStartWith(`HTTP/1.1 ${status} `);
    expect(headOf(text)).toMatch(/^content-type: application\/json/im);
    expect(headOf(text).match(/^access-control-allow-origin: \*/gim)).toHaveLength(1);
    expect(bodyOf(text)).toEqual({ code: status, message: expect.any(String) });
  });

  heldTest("names tested clients for an unknown route", async () => {
    const { status, json } = await scene.call("GET", "/nowhere");
    const message = expect.stringContaining("no such route; tested clients: e2b for Python 2.20.3");
    expect([status, json]).toEqual([404, { code: 404, message }]);
  });
});

describe("a page of any origin", () => {
  heldTest.each(["/sandboxes", "/process.Process/Start", "/files", "/nowhere", "*"])("may call %s", async (path) => {
    const head = headOf(await ask(request(`OPTIONS ${path}`, "Host: a", "Origin: https://b", "Connection: close")));
    expect(head).toStartWith("HTTP/1.1 204 No Content\r\n");
    for (const field of ["Allow-Origin: *", "Allow-Headers: *", "Allow-Methods: *", "Expose-Headers: X-Next-Token"]) {
      expect(head).toContain(`\r\nAccess-Control-${field}`);
    }
    expect(head).not.toMatch(/^content-(?:type|length):/im);
  });

  heldTest("may name the user of a call, which no wildcard permits", async () => {
    const asked = "Access-Control-Request-Headers: authorization,e2b-sandbox-id";
    const bytes = request("OPTIONS /process.Process/Start", "Host: a", "Origin: https://b", asked, "Connection: close");
    expect(headOf(await ask(bytes))).toContain("\r\nAccess-Control-Allow-Headers: Authorization\r\n");
  });

  heldTest("reads answers, also those of errors", async () => {
    for (const path of ["/health", "/sandboxes", "/metrics"]) {
      const { headers } = await scene.call("GET", path, { key: null });
      expect([path, headers.get("access-control-allow-origin")]).toEqual([path, "*"]);
      expect(headers.get("access-control-expose-headers")).toBe("X-Next-Token");
    }
  });
});

describe("a key", () => {
  heldTest("is a token in either spelling", async () => {
    for (const key of [scene.key, scene.api.token])
      expect((await scene.call("GET", "/nowhere", { key })).status).toBe(404);
  });

  heldTest("of any other form, or in another field, is refused", async () => {
    for (const key of ["", "e2b_", "e2b_00", `${scene.key}00`, scene.api.token.slice(1), "x"]) {
      const { status, json } = await scene.call("GET", "/nowhere", { key });
      expect([status, json.code]).toEqual([401, 401]);
    }
    const headers = { authorization: `Bearer ${scene.api.token}` };
    expect((await scene.call("GET", "/nowhere", { key: null, headers })).status).toBe(401);
  });

  heldTest("that is revoked is refused at once", async () => {
    const key = await scene.api.issue("alice", ["*"]);
    expect((await scene.call("GET", "/nowhere", { key })).status).toBe(404);
    const { jti } = JSON.parse(Buffer.from(key.split(".")[1] ?? "", "base64url").toString());
    revokeToken(scene.api.parts.db, jti, Date.now());
    expect((await scene.call("GET", "/nowhere", { key })).status).toBe(401);
  });

  heldTest("is judged before a body is read, and the connection says that it closes", async () => {
    for (const path of ["/sandboxes", "/process.Process/Start", "/files?path=a"]) {
      const peer = await client();
      const named = path === "/sandboxes" ? [] : ["E2b-Sandbox-Id: x"];
      peer.send(request(`POST ${path}`, "Host: a", ...named, "Content-Length: 1000000"));
      await peer.closed;
      expect([path, headOf(peer.text).split(" ")[1]]).toEqual([path, path === "/sandboxes" ? "401" : "502"]);
      expect(headOf(peer.text)).toMatch(/\r\nconnection: close/i);
    }
  });
});

describe("the address of an upload", () => {
  const hash = "a".repeat(64);
  const isRefused = async (path: string) => (await scene.call("PATCH", path, { key: null })).status === 401;

  heldTest("stands for a token, for one file and an hour", async () => {
    const { service, clock, db } = scene.api.parts;
    const key = await scene.api.issue("alice", ["images:import"]);
    const { jti } = JSON.parse(Buffer.from(key.split(".")[1] ?? "", "base64url").toString());
    const principal = { accountId: "alice" as AccountId, grants: new Set<string>(), tokenId: jti };
    const secret = await service.e2b.uploads.secret(principal, hash);
    const path = `/upload/${hash}?secret=${encodeURIComponent(secret)}`;
    expect(await service.e2b.uploads.caller(secret, hash)).toMatchObject({ accountId: "alice", tokenId: jti });
    expect(await isRefused(path)).toBe(false);
    // It opens no other path.
    expect((await scene.call("GET", `/sandboxes?secret=${secret}`, { key: null })).status).toBe(401);
    const claims = secret.split(".");
    const bob = [...claims.slice(0, 3), Buffer.from("bob").toString("base64url"), claims[4]].join(".");
    for (const wrong of [
      "",
      "x",
      `${secret}x`,
      bob,
      claims.slice(0, 4).join("."),
      `${secret}.${secret}`,
      ".".repeat(600),
    ]) {
      expect([wrong, await isRefused(`/upload/${hash}?secret=${encodeURIComponent(wrong)}`)]).toEqual([wrong, true]);
    }
    expect(await isRefused(path.replace("/upload/a", "/upload/b"))).toBe(true);
    expect(await isRefused(path.replace(`/${hash}`, `/${hash}/../x`))).toBe(true);
    clock.offsetMs += 3_600_001;
    expect(await isRefused(path)).toBe(true);
    clock.offsetMs = 0;
    revokeToken(db, jti, Date.now());
    expect(await isRefused(path)).toBe(true);
  });
});

describe("the application", () => {
  heldTest("listens on a socket of its user alone", () => {
    const { mode } = statSync(join(scene.api.parts.layout.runtime, "e2b.sock"));
    expect(mode & 0o777).toBe(0o600);
  });

  heldTest("believes the gateway alone which sandbox a request is for", async () => {
    const sandbox = await scene.open();
    const token = { "x-access-token": sandbox.token };
    for (const name of ["x-coppice-sandbox", "X_Coppice_Sandbox"]) {
      const { status, json } = await scene.call("GET", "/metrics", { key: null, headers: { [name]: sandbox.id } });
      expect([status, json.code]).toEqual([400, 400]);
      const other = { ...sandbox.headers(), "e2b-sandbox-id": "0".repeat(32), [name]: sandbox.id };
      expect((await scene.call("GET", "/health", { key: null, headers: other })).status).toBe(502);
      // A call of the API is not one of an agent.
      expect(
        (await scene.call("GET", "/sandboxes/x/y", { key: null, headers: { ...token, [name]: sandbox.id } })).status,
      ).toBe(401);
    }
    const hidden = { connection: "x-coppice-sandbox", "x-coppice-sandbox": sandbox.id };
    expect((await scene.call("GET", "/metrics", { key: null, headers: hidden })).status).toBe(400);
  });

  heldTest("reads heads of all sizes that the listener passes", async () => {
    const fields = Array.from({ length: 95 }, (_, n) => `X-${n}: a`);
    for (const bytes of [
      request("GET /health", "Host: a", "Connection: close", ...fields),
      request(`GET /health?${"a".repeat(15_500)}`, "Host: a", "Connection: close"),
      request("GET /health", "Host: a", "Connection: close", `X-A: ${"a".repeat(15_700)}`),
      request("GET /health", `Host: ${"a".repeat(15_700)}`, "Connection: close"),
    ]) {
      expect(await ask(bytes)).toStartWith("HTTP/1.1 204 ");
    }
  });

  heldTest("takes the path as the client wrote it, whatever its Host", async () => {
    for (const host of ["a", "", "a/b", "a?b", "a#b", "user@a", "[", "é"]) {
      const text = await ask(request("GET /health", `Host: ${host}`, "Connection: close"));
      expect([host, text.split(" ")[1]]).toEqual([host, "204"]);
    }
  });
});

describe("a connection", () => {
  heldTest("stays open after a call with a body", async () => {
    const peer = await client();
    for (let n = 1; n <= 3; n++) {
      const body = '{"a":1}';
      peer.send(
        `${request("POST /nowhere", "Host: a", `X-API-Key: ${scene.key}`, `Content-Length: ${body.length}`)}${body}`,
      );
      await until("the answer arrives", () => peer.text.split("no such route").length === n + 1);
    }
    expect(peer.text).not.toMatch(/connection: close/i);
  });

  heldTest("may be idle for longer than clients keep one", () => {
    expect(TIMES.idleMs).toBeGreaterThan(300_000);
  });

  heldTest("is one of hundreds that one client may have", async () => {
    const many = await Promise.all(Array.from({ length: 300 }, client));
    for (const peer of many) peer.send(request("GET /health", "Host: a"));
    await until("all have an answer", () => many.every(({ text }) => text.startsWith("HTTP/1.1 204 ")));
    expect(scene.api.parts.e2b?.clientsCount).toBeGreaterThanOrEqual(300);
    for (const { socket } of many) socket.destroy();
  });
});

heldTest("the listener speaks TLS with the certificate of the settings", async () => {
  const directory = await mkdtemp(join(tmpdir(), "coppice-e2b-tls-"));
  const [cert, key] = [join(directory, "cert.pem"), join(directory, "key.pem")];
  const options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert];
  const names = ["-subj", "/CN=box.test", "-addext", "subjectAltName=DNS:box.test,DNS:*.box.test"];
  await run({ argv: ["openssl", "req", "-x509", ...options, ...names], timeoutMs: 30_000 });
  await using secure = await E2bScene.start({ tls: { cert, key } });
  const tls = { ca: await Bun.file(cert).text(), serverName: "api.box.test" };
  const headers = { host: "api.box.test", "x-api-key": secure.key };
  const response = await fetch(`https://127.0.0.1:${secure.port}/nowhere`, { headers, tls } as never);
  expect([response.status, ((await response.json()) as { code: number }).code]).toEqual([404, 404]);
  await rm(directory, { recursive: true });
});
