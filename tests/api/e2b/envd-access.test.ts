/** Access to the agents of sandboxes: by tokens and by signed links. */

import { afterAll, beforeAll, describe, expect } from "bun:test";
import { createHash } from "node:crypto";
import { createE2bApp } from "../../../src/api/e2b/app.ts";
import { isEnvdPath } from "../../../src/api/e2b/routing.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import { heldTest } from "../../support/api/program.ts";
import { type E2bSandbox, E2bScene } from "../../support/e2b/scene.ts";
import { until } from "../../support/waiting.ts";

let scene: E2bScene;
let sandbox: E2bSandbox;
let other: E2bSandbox;
beforeAll(async () => {
  scene = await E2bScene.start();
  sandbox = await scene.open();
  other = await scene.open();
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

const UNPROVEN = "unauthorized access, please provide a valid access token or method signing if supported";
const PATHS = ["/process.Process/List", "/filesystem.Filesystem/Stat", "/envs", "/metrics", "/files/compose"];

/** The query of a link, as clients make it. */
function link(token: string, { path = "a/é", operation = "read", user = "", end }: LinkFields = {}): string {
  const text = `${path}:${operation}:${user}:${token}${end === undefined ? "" : `:${end}`}`;
  const signature = `v1_${createHash("sha256").update(text).digest("base64").replace(/=+$/, "")}`;
  return new URLSearchParams({
    path,
    ...(user === "" ? {} : { username: user }),
    signature,
    ...(end === undefined ? {} : { signature_expiration: String(end) }),
  }).toString();
}
interface LinkFields {
  readonly path?: string;
  readonly operation?: string;
  readonly user?: string;
  readonly end?: number;
}

describe("a request to an agent", () => {
  heldTest("needs the token of its sandbox on every path", async () => {
    const traffic = await scene.api.parts.service.e2b.credentials.token("traffic", {
      sandboxId: sandbox.uuid,
      keyId: null,
    });
    for (const path of PATHS) {
      for (const token of ["", "x", other.token, traffic, scene.key, scene.api.token, `${sandbox.token} `.repeat(2)]) {
        const { status, json } = await sandbox.envd("POST", path, { headers: { "x-access-token": token }, json: {} });
        expect([path, status, json]).toEqual([path, 401, { code: 401, message: UNPROVEN }]);
      }
    }
  });

  heldTest("that names no sandbox is refused without a token", async () => {
    for (const path of PATHS) {
      const { status, json } = await scene.call("POST", path, { key: null, json: {} });
      expect([path, status, json.code]).toEqual([path, 400, 400]);
    }
  });

  heldTest("that names no sandbox finds the one of its token, while that lives", async () => {
    const health = (token: string) => scene.call("GET", "/health", { key: null, headers: { "x-access-token": token } });
    const mine = await scene.create();
    expect((await health(mine.token)).status).toBe(204);
    expect((await scene.call("DELETE", `/sandboxes/${mine.id}`)).status).toBe(204);
    for (const token of [mine.token, "x"]) {
      const { status, json } = await health(token);
      expect([status, json.message]).toEqual([502, "The sandbox was not found"]);
    }
  });

  heldTest("to a sandbox that does not exist is 502, whatever the token", async () => {
    for (const id of ["0".repeat(32), "x", "a".repeat(5000), "' or 1=1", sandbox.id.slice(1), `${sandbox.id}0`]) {
      const { status, json } = await scene.sandbox(id, sandbox.token).envd("GET", "/health");
      expect([status, json.code, json.message]).toEqual([502, 502, "The sandbox was not found"]);
    }
  });

  heldTest("finds the sandbox by both spellings of its id, and by its host", async () => {
    for (const id of [sandbox.id, sandbox.uuid, sandbox.uuid.toUpperCase()]) {
      expect((await scene.sandbox(id, sandbox.token).envd("GET", "/health")).status).toBe(204);
    }
    const headers = { host: `49983-${sandbox.id}.box.example`, "e2b-sandbox-id": other.id };
    expect((await scene.call("POST", "/envs", { key: null, headers, json: {} })).json.message).toBe(UNPROVEN);
  });

  heldTest("has no account's other paths", async () => {
    const headers = { host: `49983-${sandbox.id}.box.example` };
    for (const path of ["/sandboxes", "/init", "/freeze", "/upgrade", "/v1/sandboxes"]) {
      expect((await scene.call("GET", path, { headers })).status).toBe(404);
      expect((await scene.call("GET", path, { key: null, headers })).status).toBe(401);
    }
  });

  heldTest("is not served after the sandbox was ended", async () => {
    const ended = await scene.open();
    expect((await ended.envd("GET", "/health")).status).toBe(204);
    await scene.api.call("DELETE", `/v1/sandboxes/${ended.uuid}`);
    const { status, json } = await ended.envd("GET", "/health");
    expect([status, json.message]).toEqual([502, "The sandbox was not found"]);
  });
});

describe("a paused sandbox", () => {
  /** Pauses a sandbox, and waits until it is. */
  async function pause({ uuid }: E2bSandbox): Promise<void> {
    const { status } = await scene.api.call("POST", `/v1/sandboxes/${uuid}/pause?wait=60`);
    expect([200, 202]).toContain(status);
    await until("it is paused", () => scene.stateOf(uuid) === "paused");
  }

  heldTest("is gone for its clients", async () => {
    const paused = await scene.open({ auto_resume: false, public_ports: [80] });
    await pause(paused);
    const { status, json } = await paused.envd("GET", "/health");
    expect([status, json]).toEqual([502, { sandboxId: paused.id, message: "The sandbox was not found", code: 502 }]);
    const byHost = await scene.call("GET", "/", { key: null, headers: { host: `80-${paused.id}.a` } });
    expect([byHost.status, byHost.json.message]).toEqual([502, "The sandbox was not found"]);
    expect(paused.state).toBe("paused");
  });

  heldTest(
    "is resumed by a request when its owner wants that, for five minutes at least, and keeps its token",
    async () => {
      const paused = await scene.open({ auto_resume: true, timeout: 60 });
      await pause(paused);
      expect((await paused.envd("POST", "/envs", { headers: { "x-access-token": "x" }, json: {} })).status).toBe(401);
      // A stranger cannot wake it with a question after its health.
      expect((await paused.envd("GET", "/health", { headers: { "x-access-token": "x" } })).status).toBe(502);
      expect(paused.state).toBe("paused");
      const before = Date.now();
      expect((await paused.envd("GET", "/health")).status).toBe(204);
      expect(paused.state).toBe("running");
      const { json } = await scene.api.call("GET", `/v1/sandboxes/${paused.uuid}`);
      expect(Date.parse(json.ends_at) - before).toBeGreaterThanOrEqual(299_000);
      expect((await paused.envd("POST", "/envs", { json: {} })).status).not.toBe(401);
      expect(scene.errors).toEqual([]);
    },
  );
});

describe("a link to a file", () => {
  const get = (query: string, method = "GET", headers: Record<string, string> = {}) =>
    scene.call(method, `/files?${query}`, { key: null, headers });

  heldTest("finds its sandbox by its signature", async () => {
    // The guest has neither files nor users. A link that is not valid has another answer.
    const absent = "path '/a/é' does not exist";
    const answers: [LinkFields, string][] = [
      [{}, absent],
      [{ user: "root" }, "invalid username: 'root'"],
      [{ path: "/a b+c%" }, "path '/a b+c%' does not exist"],
      [{ end: Math.floor(Date.now() / 1000) + 60 }, absent],
    ];
    for (const [fields, message] of answers) {
      expect((await get(link(sandbox.token, fields))).json.message).toBe(message);
    }
    expect((await get(link(sandbox.token, { operation: "write" }), "POST")).status).not.toBe(401);
    // Also where a client does not encode the signature.
    const raw = link(sandbox.token).replaceAll("%2B", "+").replaceAll("%2F", "/");
    expect((await get(raw)).status).not.toBe(401);
  });

  heldTest("is for one operation, path, user and sandbox", async () => {
    const query = link(sandbox.token);
    const wrong = [
      [query, "POST"],
      [link(sandbox.token, { operation: "write" }), "GET"],
      [query.replace("path=a", "path=b"), "GET"],
      [`${query}&username=root`, "GET"],
      [`${query}&signature_expiration=9999999999`, "GET"],
      [query.replace("v1_", "v2_"), "GET"],
    ] as const;
    for (const [text, method] of wrong) {
      const { status, json } = await get(text, method);
      expect([status, json]).toEqual([401, { code: 401, message: "invalid signature" }]);
    }
    const headers = { "e2b-sandbox-id": other.id };
    expect((await get(query, "GET", headers)).json.message).toBe("invalid signature");
    expect((await get(query, "GET", { "e2b-sandbox-id": sandbox.id })).status).not.toBe(401);
  });

  heldTest("opens nothing besides its file", async () => {
    const query = link(sandbox.token);
    const write = link(sandbox.token, { operation: "write" });
    for (const headers of [{}, { "e2b-sandbox-id": sandbox.id }]) {
      // The first parameter of a name is the signed one, and the path is not normalised before.
      for (const text of [
        `path=b&${query}`,
        `signature=x&${query}`,
        query.replace("path=a", "path=./a"),
        `${query}%3D`,
      ]) {
        expect([text, (await get(text, "GET", headers)).status]).toEqual([text, 401]);
      }
      expect((await get(query, "DELETE", headers)).status).toBe(401);
      expect((await get(write, "DELETE", headers)).status).toBe(405);
      // A token is proven in place of the link. Without the name of a sandbox, it may be that of another one.
      const wrong = "e2b-sandbox-id" in headers ? ["", "x", other.token] : ["", "x"];
      for (const token of wrong) {
        expect([401, 502]).toContain((await get(query, "GET", { ...headers, "x-access-token": token })).status);
      }
      const json = { source_paths: ["/a"], destination: "a/é" };
      const paths = [
        "/files/compose",
        "/envs",
        "/process.Process/Start",
        "/x/../files",
        "/%66iles",
        "//files",
        "/files/",
      ];
      for (const path of paths) {
        const { status } = await scene.call("POST", `${path}?${write}`, { key: null, headers, json });
        expect([path, [400, 401].includes(status)]).toEqual([path, true]);
      }
    }
  });

  heldTest("ends at its time", async () => {
    const ended = link(sandbox.token, { end: Math.floor(Date.now() / 1000) - 10 });
    for (const headers of [{}, { "e2b-sandbox-id": sandbox.id }]) {
      const { status, json } = await get(ended, "GET", headers);
      expect([status, json]).toEqual([401, { code: 401, message: "signature is already expired" }]);
    }
    for (const end of ["", "x", "1e99x"]) {
      expect((await get(`${link(sandbox.token)}&signature_expiration=${end}`)).status).toBe(401);
    }
  });

  heldTest("is needed where there is no token", async () => {
    for (const headers of [{}, { "e2b-sandbox-id": sandbox.id }]) {
      const { status, json } = await get("path=a", "GET", headers);
      expect([status, json]).toEqual([401, { code: 401, message: "missing signature query parameter" }]);
    }
  });

  heldTest("is guessed only so often from one address", async () => {
    await using own = await E2bScene.start({ isBehindProxy: true });
    const open = await own.open();
    const from = (address: string, query: string) =>
      own.call("GET", `/files?${query}`, { key: null, headers: { "x-forwarded-for": address } });
    const statuses = Array.from({ length: 60 }, () => from("192.0.2.1", link("x")).then((answer) => answer.status));
    expect((await Promise.all(statuses)).sort()).toEqual([...Array(30).fill(401), ...Array(30).fill(429)]);
    const { status, headers, json } = await from("192.0.2.1", link(open.token));
    expect([status, json.code, Number(headers.get("retry-after"))]).toEqual([429, 429, expect.any(Number)]);
    for (let n = 0; n < 40; n++) expect((await from("192.0.2.2", link(open.token))).status).not.toBe(429);
    own.api.parts.clock.offsetMs += 61_000;
    expect((await from("192.0.2.1", link(open.token))).status).not.toBe(429);
  });
});

heldTest("every route of the API checks a scope", () => {
  const { service } = scene.api.parts;
  const settings = { domain: null, defaultUser: "user", hasPublicPorts: true };
  const { routes } = createE2bApp({ service, settings, accounts: new Accounts() } as never);
  const scopeOf = (hooks: unknown) => (hooks as { detail?: { scope?: string } }).detail?.scope;
  const open = routes.filter(({ hooks, path }) => scopeOf(hooks) === undefined && !isEnvdPath(path));
  expect(open.map(({ method, path }) => `${method} ${path}`)).toEqual([]);
});
