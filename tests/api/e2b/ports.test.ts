/** Ports of sandboxes on the listener for clients of E2B. */

import { afterAll, beforeAll, describe, expect } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Server, ServerWebSocket } from "bun";
import { type RecordedNetwork, sandboxRecords } from "../../../src/db/e2b/schema.ts";
import { run } from "../../../src/system/exec.ts";
import { heldTest } from "../../support/api/program.ts";
import { type E2bSandbox, E2bScene } from "../../support/e2b/scene.ts";
import { freePort } from "../../support/free-port.ts";
import { Peer } from "../../support/ingress/scene.ts";
import { until } from "../../support/waiting.ts";

let scene: E2bScene;
let privateScene: E2bScene;
let sandbox: E2bSandbox;
/** a program in the guest, which is this host */
let guest: Server<undefined>;
/** the fields of the latest request that it got */
let seen: Record<string, string> = {};

beforeAll(async () => {
  scene = await E2bScene.start();
  privateScene = await E2bScene.start({ hasPublicPorts: false });
  sandbox = await scene.create();
  guest = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    async fetch(request, server) {
      seen = Object.fromEntries(request.headers);
      if (server.upgrade(request)) return undefined;
      return new Response(`${request.method} ${new URL(request.url).pathname} ${await request.text()}`);
    },
    websocket: {
      message: (socket: ServerWebSocket<undefined>, message) => void socket.send(`echo ${String(message)}`),
    },
  });
});
afterAll(async () => {
  guest.stop(true);
  await scene[Symbol.asyncDispose]();
  await privateScene[Symbol.asyncDispose]();
});

/** A record as a creation makes it, with a network. */
async function record(of: E2bScene, { uuid }: E2bSandbox, network: Partial<RecordedNetwork> | null): Promise<void> {
  const { db, service } = of.api.parts;
  const keyId = await service.e2b.credentials.keyId();
  db.transaction((tx) =>
    tx
      .insert(sandboxRecords)
      .values({
        ...{
          sandboxId: uuid,
          templateId: "t",
          alias: null,
          buildId: null,
          timeoutSeconds: 60,
          allowInternetAccess: null,
        },
        ...{ autoPauseMemory: true, pausedFilesOnly: false, readiness: null },
        keyId,
        network:
          network === null
            ? null
            : { allowOut: [], denyOut: [], allowPublicTraffic: true, maskRequestHost: null, ...network },
      })
      .run(),
  );
  expect(service.e2b.find(uuid)?.record.network).not.toBeUndefined();
}

const hostOf = ({ id }: E2bSandbox, port: number) => `${port}-${id}.box.example`;

/** Asks a port by its host. */
function ask(of: E2bScene, host: string, fields: Readonly<Record<string, string>> = {}, method = "GET") {
  const body = method === "POST" ? { body: "text" } : {};
  return of.call(method, "/a/b?c", { key: null, headers: { host, ...fields }, ...body });
}

describe("a port", () => {
  heldTest("is reached by its host, with any method", async () => {
    const host = hostOf(sandbox, guest.port ?? 0);
    for (const method of ["GET", "POST", "DELETE", "OPTIONS"]) {
      const { status, text } = await ask(scene, host, {}, method);
      expect([status, text]).toEqual([200, `${method} /a/b ${method === "POST" ? "text" : ""}`]);
    }
    expect(seen).toMatchObject({
      host,
      "x-forwarded-for": "127.0.0.1",
      "x-forwarded-proto": "http",
      "x-forwarded-host": host,
    });
  });

  heldTest("is reached by the fields that name it, unless the request has a key", async () => {
    const headers = { "e2b-sandbox-id": sandbox.id, "e2b-sandbox-port": String(guest.port) };
    expect((await scene.call("GET", "/files", { key: null, headers })).text).toBe("GET /files ");
    const { status, json } = await scene.call("GET", "/files", { headers });
    expect([status, json.code]).toEqual([404, 404]);
  });

  heldTest("never gets a key of the appliance, but keys of its own service", async () => {
    const host = hostOf(sandbox, guest.port ?? 0);
    for (const name of ["X-API-Key", "x_api_key", "X-Access-Token", "Authorization"]) {
      for (const key of [scene.key, scene.api.token, scene.foreignKey, `Bearer ${scene.api.token}`]) {
        await ask(scene, host, { [name]: key });
        expect([name, JSON.stringify(seen).includes(key)]).toEqual([name, false]);
      }
    }
    const own = { "x-api-key": "e2b_0123", "x-access-token": sandbox.token, authorization: "Bearer x" };
    await ask(scene, host, own);
    expect(seen).toMatchObject(own);
  });

  heldTest("does not believe what a client says of proxies", async () => {
    await ask(scene, hostOf(sandbox, guest.port ?? 0), {
      "x-forwarded-for": "9.9.9.9",
      x_forwarded_host: "evil",
      forwarded: "for=9.9.9.9",
      "x-coppice-sandbox": "x",
    });
    expect(JSON.stringify(seen)).not.toMatch(/9\.9\.9\.9|evil/);
  });

  heldTest("carries WebSockets", async () => {
    const socket = new WebSocket(`ws://127.0.0.1:${scene.port}/ws`, {
      headers: { host: hostOf(sandbox, guest.port ?? 0) },
    } as never);
    const texts: string[] = [];
    socket.onmessage = ({ data }) => void texts.push(String(data));
    await new Promise((resolve) => {
      socket.onopen = resolve;
    });
    socket.send("hello");
    await until("the echo arrives", () => texts.includes("echo hello"));
    socket.close();
  });

  heldTest("that is closed, or whose sandbox is gone, is 502 in words that clients know", async () => {
    const closed = await freePort();
    const { status, json } = await ask(scene, hostOf(sandbox, closed));
    expect([status, json]).toEqual([
      502,
      { sandboxId: sandbox.id, message: "The sandbox is running but port is not open", port: closed, code: 502 },
    ]);
    const unknown = "0".repeat(32);
    for (const [host, id] of [
      [`80-${unknown}.box.example`, unknown],
      ["80-abcdefghij0123456789.box.example", "abcdefghij0123456789"],
    ]) {
      const gone = await ask(scene, host ?? "");
      expect([gone.status, gone.json]).toEqual([
        502,
        { sandboxId: id, message: "The sandbox was not found", code: 502 },
      ]);
    }
  });

  heldTest("is named by its Host, in any case, before the fields that name another one", async () => {
    const other = { "e2b-sandbox-id": "0".repeat(32), "e2b-sandbox-port": "1" };
    const { id } = sandbox;
    for (const host of [`${guest.port}-${id.toUpperCase()}.BOX`, `${guest.port}-${id}.:80`, `${guest.port}-${id}`]) {
      expect([host, (await ask(scene, host, other)).text]).toEqual([host, "GET /a/b "]);
    }
    // A Host of another form is that of the API, which asks for a key.
    for (const host of [
      `${guest.port}-${id}x.box`,
      `x${guest.port}-${id}.box`,
      `${guest.port}--${id}.box`,
      "[::1]:80",
    ]) {
      expect([host, (await ask(scene, host)).status]).toEqual([host, 401]);
    }
  });

  heldTest("has a number from 1 to 65535", async () => {
    for (const port of [0, 65_536, 70_000]) {
      const { status, json } = await ask(scene, hostOf(sandbox, port));
      expect([status, json]).toEqual([400, { code: 400, message: "the port must be from 1 to 65535" }]);
    }
  });

  heldTest("whose program does not speak HTTP is 502 in the shape of the dialect", async () => {
    const program = Bun.listen({
      ...{ hostname: "127.0.0.1", port: 0 },
      socket: { data: (socket) => void socket.end("SSH-2.0-x\r\n") },
    });
    const { status, json } = await ask(scene, hostOf(sandbox, program.port));
    expect([status, json]).toEqual([
      502,
      { code: 502, message: expect.stringContaining("did not answer as HTTP/1.1") },
    ]);
    program.stop(true);
  });

  heldTest("says why in HTML to a browser", async () => {
    const { status, text } = await ask(scene, `80-${"0".repeat(32)}.a`, { accept: "text/html,*/*" });
    expect([status, text]).toEqual([502, expect.stringContaining("<h1>502 Bad Gateway</h1>")]);
  });

  heldTest("of a sandbox that was ended is gone", async () => {
    const ended = await scene.open();
    const { status } = await scene.api.call("DELETE", `/v1/sandboxes/${ended.uuid}`);
    expect(status).toBe(200);
    expect((await ask(scene, hostOf(ended, guest.port ?? 0))).json.message).toBe("The sandbox was not found");
  });
});

describe("a private port", () => {
  heldTest("needs the token of the sandbox, which its program does not get", async () => {
    const own = await scene.open();
    await record(scene, own, { allowPublicTraffic: false });
    const { e2b } = scene.api.parts.service;
    const recorded = e2b.find(own.uuid);
    if (recorded === null) throw new Error("the sandbox is gone");
    const token = await e2b.credentials.token("traffic", recorded.record);
    const host = hostOf(own, guest.port ?? 0);
    for (const wrong of [undefined, "", own.token, `${token}a`, scene.key]) {
      const fields = wrong === undefined ? {} : { "e2b-traffic-access-token": wrong };
      const { status, json } = await ask(scene, host, fields);
      expect([status, json.code]).toEqual([403, 403]);
    }
    const { status } = await ask(scene, host, { "E2B-Traffic-Access-Token": token, e2b_traffic_access_token: token });
    expect(status).toBe(200);
    expect(JSON.stringify(seen)).not.toContain(token);
  });

  heldTest("is each one of a sandbox of another surface that its owner does not name", async () => {
    const own = await scene.open({ public_ports: [guest.port] });
    expect((await ask(scene, hostOf(own, guest.port ?? 0))).status).toBe(200);
    const closed = hostOf(own, await freePort());
    expect((await ask(scene, closed)).status).toBe(403);
    const { json } = await scene.call("POST", `/sandboxes/${own.id}/connect`);
    expect((await ask(scene, closed, { "e2b-traffic-access-token": json.trafficAccessToken })).status).toBe(502);
  });

  heldTest("is each one of a sandbox whose maker may not publish ports", async () => {
    const key = await scene.api.issue("alice", ["instances:spawn", "instances:exec"]);
    const json = { templateID: "base", timeout: 60 };
    const own = (await scene.call("POST", "/sandboxes", { key, json })).json;
    const paused = await scene.create();
    expect((await scene.call("POST", `/sandboxes/${paused.id}/pause`)).status).toBe(204);
    const [{ sandbox: forked }] = (await scene.call("POST", `/sandboxes/${paused.id}/fork`, { key })).json;
    for (const { sandboxID, trafficAccessToken } of [own, forked]) {
      const host = `${guest.port}-${sandboxID}.box.example`;
      expect((await ask(scene, host)).status).toBe(403);
      expect((await ask(scene, host, { "e2b-traffic-access-token": trafficAccessToken })).status).toBe(200);
    }
  });

  heldTest("is the rule where the operator wants it", async () => {
    const own = await privateScene.open();
    const host = hostOf(own, guest.port ?? 0);
    expect((await ask(privateScene, host)).status).toBe(403);
    const token = await privateScene.api.parts.service.e2b.credentials.token("traffic", {
      sandboxId: own.uuid,
      keyId: null,
    });
    expect((await ask(privateScene, host, { "e2b-traffic-access-token": token })).status).toBe(200);
    // The owner cannot turn that off.
    await record(privateScene, own, { allowPublicTraffic: true });
    expect((await ask(privateScene, host)).status).toBe(403);
  });
});

describe("the Host that a program sees", () => {
  heldTest.each([
    [`localhost:\${PORT}`, (port: number) => `localhost:${port}`],
    ["app.example", () => "app.example"],
    // A value that cannot be a Host changes nothing.
    ["a\r\nX-Evil: 1", (port: number, id: string) => `${port}-${id}.box.example`],
  ])("is %j", async (maskRequestHost, expected) => {
    const own = await scene.open();
    await record(scene, own, { maskRequestHost });
    const port = guest.port ?? 0;
    expect((await ask(scene, hostOf(own, port))).status).toBe(200);
    expect(seen["host"]).toBe(expected(port, own.id));
    expect(seen["x-evil"]).toBeUndefined();
  });
});

describe("a port whose program speaks TLS", () => {
  heldTest("is reached by plain HTTP, with bodies of any size in both directions", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-e2b-tls-"));
    const [cert, key] = [join(directory, "cert.pem"), join(directory, "key.pem")];
    const options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert, "-subj", "/CN=x"];
    await run({ argv: ["openssl", "req", "-x509", ...options], timeoutMs: 30_000 });
    const sizeBytes = 4 << 20;
    const program = Bun.serve({
      ...{ port: 0, hostname: "127.0.0.1", tls: { cert: Bun.file(cert), key: Bun.file(key) } },
      fetch: async (request) => new Response(await request.bytes()),
    });
    const port = program.port ?? 0;
    const own = await scene.create({ network: { httpsPorts: [port, guest.port ?? 0] } });
    const body = new Uint8Array(sizeBytes).map((_, index) => index);
    const host = hostOf(own, port);
    for (let n = 0; n < 2; n++) {
      const { status, bytes } = await scene.call("POST", "/", { key: null, headers: { host }, body });
      expect([status, Bun.hash(bytes)]).toEqual([200, Bun.hash(body)]);
    }
    const { status, json } = await ask(scene, hostOf(own, guest.port ?? 0));
    expect([status, json]).toEqual([502, { code: 502, message: "the program on this port does not speak TLS" }]);
    program.stop(true);
    await rm(directory, { recursive: true });
  });
});

heldTest("a connection serves ports, the agent and the API by turns, each request by its own Host", async () => {
  const peer = await Peer.connect(scene.port);
  const get = (path: string, host: string, ...fields: string[]) =>
    peer.send([`GET ${path} HTTP/1.1`, `Host: ${host}`, ...fields, "", ""].join("\r\n"));
  get("/one", hostOf(sandbox, guest.port ?? 0));
  await peer.until("GET /one ");
  get("/sandboxes/x/y", "a", `X-API-Key: ${scene.key}`);
  await peer.until("no such route");
  get("/health", `49983-${sandbox.id}.a`);
  await peer.until("HTTP/1.1 204 ");
  get("/two", hostOf(sandbox, guest.port ?? 0));
  await peer.until("GET /two ");
  expect(peer.text).not.toContain("Connection: close");
  peer.socket.destroy();
});
