import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { type GateConnection, GateError } from "../../../src/network/gate.ts";
import type { SiteProxy } from "../../../src/network/site-proxy.ts";
import { guestRequest, type TestGate, testGate } from "../../support/network/gate.ts";
import { echo, type Peer, peer } from "../../support/network/peers.ts";
import { httpProxy, socksProxy, type TestProxy } from "../../support/network/proxies.ts";
import { type NameServer, nameServer } from "../../support/network/site/name-server.ts";

setDefaultTimeout(60_000);

const never = new AbortController().signal;
const CREDENTIALS = { user: "alice", password: "s3cret pass" };
let names: NameServer;
let server: Peer;
beforeAll(async () => {
  names = await nameServer((name) => (name === "direct.example" ? { addresses: ["127.0.0.1"] } : null));
  server = await peer(echo);
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await names[Symbol.asyncDispose]();
});

const behind = (proxy: Pick<SiteProxy, "kind" | "port"> & Partial<SiteProxy>): Promise<TestGate> =>
  testGate({
    resolvers: [names.address],
    proxy: { host: "127.0.0.1", credentials: CREDENTIALS, ...proxy },
    proxyBypass: { names: [{ host: "direct.example", ports: "*" }], ranges: ["192.0.2.0/24"] },
  });

async function conversation(connection: GateConnection): Promise<string> {
  await connection.write(Buffer.from("some bytes"));
  connection.end();
  const chunks: Uint8Array[] = [];
  for await (const chunk of connection.chunks()) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

async function failure(attempt: Promise<unknown>): Promise<[string, string]> {
  const error = await attempt.then(
    () => null,
    (reason: unknown) => reason,
  );
  if (!(error instanceof GateError)) throw new Error("it did not fail as it should", { cause: error });
  return [error.verdict, error.message];
}

describe.each([
  ["http", httpProxy],
  ["socks5", socksProxy],
] as ["http" | "socks5", (refusal?: number) => Promise<TestProxy>][])("behind a proxy for %s", (kind, open) => {
  test("the proxy connects to names and addresses, and no name server is asked", async () => {
    await using proxy = await open();
    await using outside = await behind({ kind, port: proxy.port });
    const before = names.asked.length;
    const request = guestRequest({ kind: "name", host: "server.example", port: server.port });
    expect(await conversation(await outside.gate.connect(request, never))).toBe("got some bytes");
    const literal = guestRequest({ kind: "address", host: "203.0.114.1", port: server.port });
    expect(await conversation(await outside.gate.connect(literal, never))).toBe("got some bytes");
    const other = guestRequest({ kind: "address", host: "2606:4700::1", port: server.port });
    await outside.gate.connect(other, never);
    const v6 = kind === "http" ? "[2606:4700::1]" : "26064700000000000000000000000001";
    expect(proxy.asked).toEqual(["server.example", "203.0.114.1", v6].map((host) => `${host}:${server.port}`));
    expect(await outside.gate.resolve("anything.example", never)).toBeTrue();
    expect(await outside.gate.lookup("anything.example", never)).toBeNull();
    expect(names.asked).toHaveLength(before);
  });

  test("a request that denies addresses reaches no name, because the proxy alone knows its addresses", async () => {
    await using proxy = await open();
    await using outside = await behind({ kind, port: proxy.port });
    const { reach, ...request } = guestRequest({ kind: "name", host: "server.example", port: server.port });
    const denied = { ranges: ["10.0.0.0/8"], except: [] };
    const attempt = outside.gate.connect({ ...request, reach: { ...reach, denied } }, never);
    expect((await failure(attempt))[0]).toBe("denied");
    expect(proxy.asked).toEqual([]);
    const allowed = await outside.gate.connect({ ...request, reach }, never);
    expect(allowed.isProxied).toBeTrue();
    allowed.reset();
  });

  test("addresses that no guest may reach are refused before the proxy is asked", async () => {
    await using proxy = await open();
    await using outside = await behind({ kind, port: proxy.port });
    for (const host of ["10.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "fd00::1", "127.0.0.1"]) {
      const attempt = outside.gate.connect(guestRequest({ kind: "address", host, port: server.port }), never);
      expect((await failure(attempt))[0]).toBe("denied_private");
    }
    for (const host of ["127.1", "0x7f000001", "2130706433", "10.1"]) {
      const attempt = outside.gate.connect(guestRequest({ kind: "name", host, port: server.port }), never);
      expect((await failure(attempt))[0]).toBe("denied_private");
    }
    expect(proxy.asked).toEqual([]);
  });

  test("destinations that the operator excepts are connected to directly, and so is this host", async () => {
    await using proxy = await open();
    await using outside = await behind({ kind, port: proxy.port });
    for (const host of ["direct.example", "localhost"]) {
      const request = guestRequest({ kind: "name", host, port: server.port }, { anyAddress: true });
      expect(await conversation(await outside.gate.connect(request, never))).toBe("got some bytes");
    }
    expect(proxy.asked).toEqual([]);
  });

  test("wrong credentials are reported without repeating them", async () => {
    await using proxy = await open();
    const request = guestRequest({ kind: "name", host: "server.example", port: server.port });
    for (const credentials of [null, { user: "alice", password: "wrong" }]) {
      await using outside = await behind({ kind, port: proxy.port, credentials });
      const [verdict, message] = await failure(outside.gate.connect(request, never));
      expect(verdict).toBe("unreachable");
      expect(message).toMatch(/^the site's proxy (does not accept the credentials|requires another login)/);
      expect(message).not.toContain("wrong");
    }
    expect(proxy.asked).toEqual([]);
  });

  test("its refusal is reported as one, and a server that is not a proxy as such", async () => {
    await using refusing = await open(kind === "http" ? 403 : 2);
    await using silent = await peer((socket) => void socket.end("SSH-2.0-OpenSSH_9.2\r\n"));
    await using closing = await peer((socket) => void socket.end());
    const request = guestRequest({ kind: "name", host: "server.example", port: server.port });
    const failures: [string, string][] = [];
    for (const port of [refusing.port, silent.port, closing.port]) {
      await using outside = await behind({ kind, port });
      failures.push(await failure(outside.gate.connect(request, never)));
    }
    const protocol = kind === "http" ? "HTTP" : "SOCKS 5";
    expect(failures).toEqual([
      ["refused", `the site's proxy refuses the connection${kind === "http" ? " (403)" : ""}`],
      ["unreachable", `the site's proxy does not speak ${protocol}`],
      ["unreachable", "the site's proxy ends the connection"],
    ]);
  });

  test("that is down, or has a name that does not exist, is reported", async () => {
    const gone = await peer();
    await gone[Symbol.asyncDispose]();
    const request = guestRequest({ kind: "name", host: "server.example", port: server.port });
    await using down = await behind({ kind, port: gone.port });
    expect(await failure(down.gate.connect(request, never))).toEqual([
      "unreachable",
      "the site's proxy: connection refused",
    ]);
    await using unknown = await behind({ kind, host: "proxy.example", port: gone.port });
    expect(await failure(unknown.gate.connect(request, never))).toEqual([
      "unreachable",
      "the site's proxy: its name does not resolve",
    ]);
  });
});
