/** Permissions to reach ports of sandboxes: tokens, links, cookies and public ports. */

import { afterEach, beforeEach, describe, expect } from "bun:test";
import { changeState, type SandboxRow, updateSandbox } from "../../../src/db/sandboxes/rows.ts";
import { revokeToken } from "../../../src/db/tokens.ts";
import type { SandboxId } from "../../../src/domain/ids.ts";
import { heldTest } from "../../support/api/program.ts";
import { bob, newId } from "../../support/database.ts";
import { GatewayScene } from "../../support/ingress/gateway-scene.ts";
import { get, ok } from "../../support/ingress/scene.ts";
import { until } from "../../support/waiting.ts";

const HOUR_MS = 3_600_000;

let gateway: GatewayScene;
let sandbox: SandboxRow;
/** heads of requests that the guest at port 8080 got */
let heads: string[];

beforeEach(async () => {
  gateway = await GatewayScene.start();
  heads = [];
  sandbox = gateway.add("dev");
  await listenOn(8080);
});
afterEach(() => gateway[Symbol.asyncDispose]());

async function listenOn(port: number): Promise<void> {
  await gateway.scene.guest(`dev ${port}`, ({ socket, text }) => {
    heads.push(text);
    socket.end(ok("from the guest"));
  });
}

const hostOf = (id: SandboxId, port = 8080) => `${port}-${id}.box.test`;

/** The status of a GET, and the whole answer. */
async function ask(host: string, ...fields: readonly string[]) {
  const text = await gateway.scene.ask(get(host, "Connection: close", ...fields));
  return { status: Number(text.split(" ")[1]), text };
}

/** A link to port 8080. */
const link = (secret: string, ttlSeconds?: number) => gateway.link(sandbox.id, secret, ttlSeconds);

const cookieOf = (text: string) => /^Set-Cookie: ([^;]+)/m.exec(text)?.[1] ?? "";

describe("a private port", () => {
  heldTest("takes a token of its account, which the guest does not get", async () => {
    const secret = await gateway.token();
    const { status, text } = await ask(hostOf(sandbox.id), `X-Access-Token: ${secret}`, `x_access_token: ${secret}`);
    expect({ status, body: text.split("\r\n\r\n")[1] }).toEqual({ status: 200, body: "from the guest" });
    expect(heads.join("")).not.toContain(secret);
    expect(gateway.usesCount).toBe(0);
  });

  heldTest("is found by all spellings of its host, and by no other", async () => {
    const field = `x-access-token: ${await gateway.token()}`;
    const { id } = sandbox;
    const statusOf = async (host: string) => (await ask(host, field)).status;
    for (const host of [`8080-${id}.box.test:8644`, `8080-${id.replaceAll("-", "").toUpperCase()}.BOX.test`]) {
      expect(await statusOf(host)).toBe(200);
    }
    expect(await statusOf("8080-dev.alice.box.test")).toBe(200);
    for (const host of [
      ...[`8080-${id}`, `8080-${id}.other.test`, `8080-${id}.box.test.`, `08080-${id}.box.test`, `0-${id}.box.test`],
      ...[
        `65536-${id}.box.test`,
        `${id}.box.test`,
        `8080-${id}box.test`,
        `x.8080-${id}.box.test`,
        "box.test",
        "8080-dev.box.test",
      ],
      ...["8080-dev.bob.box.test", `8080-${newId()}.box.test`, `8080-${id}.alice.box.test`, "127.0.0.1"],
    ]) {
      expect([host, await statusOf(host)]).toEqual([host, 404]);
    }
  });

  heldTest("is refused without a token, with a wrong one, of another account, or without the scope", async () => {
    const host = hostOf(sandbox.id);
    const none = await ask(host, "Accept: text/html");
    expect(none.status).toBe(401);
    expect(none.text).toContain("this address is private");
    const expired = await gateway.token();
    for (const [status, secret] of [
      [401, "nonsense"],
      [404, await gateway.token("bob", ["*"])],
      [403, await gateway.token("alice", ["images:read"])],
      [200, await gateway.token("alice", ["instances:ingress"])],
    ] as const) {
      expect((await ask(host, `x-access-token: ${secret}`)).status).toBe(status);
    }
    gateway.offsetMs += 2 * HOUR_MS;
    expect((await ask(host, `x-access-token: ${expired}`)).status).toBe(401);
    expect(heads).toHaveLength(1);
  });

  heldTest("judges each request of a connection by itself", async () => {
    const foreign = gateway.add("other", bob);
    const field = `x-access-token: ${await gateway.token()}`;
    const client = await gateway.scene.client();
    client.send(get(hostOf(sandbox.id), field));
    await client.until("from the guest");
    client.send(get(hostOf(foreign.id), field));
    await client.until("404 Not Found");
    client.send(get(hostOf(sandbox.id)));
    await client.until("401 Unauthorized");
    expect(heads).toHaveLength(1);
  });

  heldTest("says to strangers whether an id exists, which they cannot guess, and not whether a name does", async () => {
    expect((await ask(hostOf(newId<SandboxId>()))).status).toBe(404);
    expect((await ask("8080-dev.alice.box.test")).status).toBe(401);
    expect((await ask("8080-absent.alice.box.test")).status).toBe(401);
    expect((await ask("8080-absent.alice.box.test", `x-access-token: ${await gateway.token()}`)).status).toBe(404);
  });

  heldTest("does as much work for grants to a name that does not exist as to one that does", async () => {
    const { grant } = await gateway.link(gateway.add("other", bob).id, await gateway.token("bob"));
    let reads = 0;
    const find = gateway.keys.find.bind(gateway.keys);
    gateway.keys.find = (id) => {
      reads++;
      return find(id);
    };
    for (const name of ["dev", "absent"]) {
      reads = 0;
      expect(
        (await ask(`8080-${name}.alice.box.test`, ...Array(9).fill(`Cookie: coppice-ingress=${grant}`))).status,
      ).toBe(401);
      expect([name, reads]).toEqual([name, 9]);
    }
  });
});

describe("a sandbox", () => {
  heldTest("that has ended is 410, a paused one is 503 or is resumed first, and a closed port is 502", async () => {
    const field = `x-access-token: ${await gateway.token()}`;
    const closed = await ask(hostOf(sandbox.id, 81), field);
    expect(closed.text).toMatch(/^HTTP\/1\.1 502 .*"port is not open"/s);
    changeState(gateway.parts.db, sandbox.id, "pause", { now: gateway.now });
    changeState(gateway.parts.db, sandbox.id, "paused", { now: gateway.now });
    const paused = await ask(hostOf(sandbox.id), field);
    expect(paused.text).toMatch(/^HTTP\/1\.1 503 .*"the sandbox is paused"/s);
    updateSandbox(gateway.parts.db, sandbox.id, { autoResume: true });
    expect((await ask(hostOf(sandbox.id), field)).status).toBe(200);
    changeState(gateway.parts.db, sandbox.id, "end", { now: gateway.now });
    expect((await ask(hostOf(sandbox.id))).text).toMatch(/^HTTP\/1\.1 410 .*"the sandbox has ended"/s);
    expect(gateway.usesCount).toBe(0);
  });

  heldTest("bounds the requests of its account, and answers 429 beyond", async () => {
    await gateway.scene.guest("dev 9000", () => undefined);
    const field = `x-access-token: ${await gateway.token()}`;
    for (let n = 1; n <= 20; n++) {
      const client = await gateway.scene.client();
      client.send(get(hostOf(sandbox.id, 9000), field));
    }
    await until("all requests are at the guest", () => gateway.usesCount === 20);
    const { text } = await ask(hostOf(sandbox.id), field);
    expect(text).toMatch(/^HTTP\/1\.1 429 .*Retry-After: 1\r\n/s);
  });
});

describe("a public port", () => {
  heldTest("takes every request while the operator allows that, and still passes no credential", async () => {
    updateSandbox(gateway.parts.db, sandbox.id, { publicPorts: [8080] });
    const host = hostOf(sandbox.id);
    expect((await ask(host, "x-access-token: of the program", "Cookie: a=b; coppice-ingress=x;c=d")).status).toBe(200);
    expect(heads[0]).not.toMatch(/x-access-token|coppice-ingress/i);
    expect(heads[0]).toContain("Cookie: a=b;c=d\r\n");
    expect((await ask(hostOf(sandbox.id, 81))).status).toBe(401);
    await gateway.reopen({ allowsPublic: false });
    expect((await ask(host)).status).toBe(401);
  });
});

describe("a link", () => {
  heldTest("sets a cookie for its own host and leads to the same place, which the cookie opens", async () => {
    const { url, expiresAt } = await link(await gateway.token());
    expect(url.hostname).toBe(hostOf(sandbox.id));
    expect(Math.abs(expiresAt - gateway.now - HOUR_MS)).toBeLessThan(60_000);
    const first = await gateway.scene.ask(
      `GET /a/b?x=1&${url.search.slice(1)}&y HTTP/1.1\r\nHost: ${url.host}\r\nConnection: close\r\n\r\n`,
    );
    expect(first).toStartWith("HTTP/1.1 303 See Other\r\n");
    expect(first).toContain("\r\nLocation: /a/b?x=1&y\r\n");
    expect(first).toMatch(
      /\r\nSet-Cookie: coppice-ingress=[\w-]{94}; Path=\/; Max-Age=3[56]\d\d; HttpOnly; SameSite=Lax\r\n/,
    );
    expect(heads).toEqual([]);
    const cookie = cookieOf(first);
    expect((await ask(url.host, `Cookie: other=1; ${cookie}; last=2`)).status).toBe(200);
    expect(heads[0]).toContain("Cookie: other=1; last=2\r\n");
    expect((await ask("8080-dev.alice.box.test", `Cookie: ${cookie}`)).status).toBe(200);
  });

  heldTest("opens one port of one sandbox, and only as it was signed", async () => {
    await listenOn(8081);
    const other = gateway.add("other");
    const { grant } = await link(await gateway.token());
    const statusOf = async (host: string, value: string) =>
      (await ask(host, `Cookie: coppice-ingress=${value}`)).status;
    expect(await statusOf(hostOf(sandbox.id), grant)).toBe(200);
    expect(await statusOf(hostOf(sandbox.id, 8081), grant)).toBe(401);
    expect(await statusOf(hostOf(other.id), grant)).toBe(401);
    for (const at of [0, 30, 45, 60, 90]) {
      const changed = `${grant.slice(0, at)}${grant[at] === "A" ? "B" : "A"}${grant.slice(at + 1)}`;
      expect(await statusOf(hostOf(sandbox.id), changed)).toBe(401);
    }
    for (const value of ["", grant.slice(0, -1), `${grant}A`])
      expect(await statusOf(hostOf(sandbox.id), value)).toBe(401);
  });

  heldTest("ends at its time, with its token, and with the key that signed it", async () => {
    const secret = await gateway.token();
    const { url, grant } = await link(secret, 60);
    const field = `Cookie: coppice-ingress=${grant}`;
    expect((await ask(url.host, field)).status).toBe(200);
    gateway.offsetMs += 61_000;
    expect((await ask(url.host, field)).status).toBe(401);
    const long = await link(secret, 7 * 86_400);
    expect(long.expiresAt).toBeLessThanOrEqual(gateway.now + HOUR_MS);
    const [second, third] = [await link(secret), await link(await gateway.token())];
    const fieldOf = (one: typeof second) => `Cookie: coppice-ingress=${one.grant}`;
    revokeToken(
      gateway.parts.db,
      JSON.parse(Buffer.from(secret.split(".")[1] ?? "", "base64url").toString()).jti,
      gateway.now,
    );
    expect((await ask(url.host, fieldOf(second))).status).toBe(401);
    expect((await ask(url.host, fieldOf(third))).status).toBe(200);
    await gateway.keys.rotate(0);
    expect((await ask(url.host, fieldOf(third))).status).toBe(401);
  });

  heldTest("leads to no other host, and its grant reaches no guest", async () => {
    const { url } = await link(await gateway.token());
    for (const path of ["//evil.test/", "/\\evil.test/"]) {
      const text = await gateway.scene.ask(
        `GET ${path}${url.search} HTTP/1.1\r\nHost: ${url.host}\r\nConnection: close\r\n\r\n`,
      );
      expect(text).toStartWith("HTTP/1.1 400 ");
      expect(text).not.toContain("Location");
    }
    await gateway.scene.ask(`POST /x${url.search} HTTP/1.1\r\nHost: ${url.host}\r\nConnection: close\r\n\r\n`);
    expect(heads[0]).toStartWith("POST /x HTTP/1.1\r\n");
  });

  heldTest("sets a cookie of TLS alone behind a proxy with TLS", async () => {
    const { url } = await link(await gateway.token());
    await gateway.reopen({ isBehindProxy: true });
    await listenOn(8080);
    const fieldsOf = [`Host: ${url.host}`, "X-Forwarded-Proto: https", "Connection: close"];
    const text = await gateway.scene.ask([`GET /${url.search} HTTP/1.1`, ...fieldsOf, "", ""].join("\r\n"));
    expect(text).toMatch(/\r\nSet-Cookie: __Host-coppice-ingress=[^\r]*; Secure\r\n/);
    const fields = [`Cookie: ${cookieOf(text)}`, "X-Forwarded-Proto: https"];
    expect((await ask(url.host, ...fields)).status).toBe(200);
    // The prefix counts: another host may have set a cookie without it.
    const bare = `Cookie: ${cookieOf(text).replace("__Host-", "")}`;
    expect((await ask(url.host, bare, "X-Forwarded-Proto: https")).status).toBe(401);
    // A page of the same host without TLS may be of anyone on the way to it.
    expect((await ask(url.host, ...fields, `Origin: http://${url.host}`)).status).toBe(403);
    expect((await ask(url.host, ...fields, `Origin: https://${url.host}`)).status).toBe(200);
  });
});

describe("the cookie of a link", () => {
  heldTest(
    "counts for pages of its own address and for visits of people, not for pages of other addresses",
    async () => {
      const { url, grant } = await link(await gateway.token());
      const cookie = `Cookie: coppice-ingress=${grant}`;
      const other = `http://8080-${newId()}.box.test:${url.port}`;
      const navigation = ["Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"];
      for (const [status, fields] of [
        [200, []],
        [200, [`Origin: ${url.origin}`, "Sec-Fetch-Site: same-origin"]],
        [200, ["Sec-Fetch-Site: none", ...navigation]],
        [200, ["Sec-Fetch-Site: cross-site", ...navigation]],
        [403, ["Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"]],
        [403, ["Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"]],
        [403, [`Origin: ${other}`]],
        [403, ["Origin: null"]],
        [200, [`Origin: https://${url.host}`]],
        [403, [`Origin: ftp://${url.host}`]],
        [403, [`Origin: ${other}`, "Upgrade: websocket", "Connection: Upgrade"]],
      ] as const) {
        expect([fields, (await ask(url.host, cookie, ...fields)).status]).toEqual([fields, status]);
      }
    },
  );
});
