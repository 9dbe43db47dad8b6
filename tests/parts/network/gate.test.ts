import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Destination } from "../../../src/domain/network.ts";
import { type GateConnection, GateError, type GateRequest } from "../../../src/network/gate.ts";
import { HostNetwork } from "../../../src/network/host-network.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { throwing } from "../../support/failures.ts";
import { guestRequest, type TestGate, testGate } from "../../support/network/gate.ts";
import { echo, peer } from "../../support/network/peers.ts";
import { httpProxy } from "../../support/network/proxies.ts";
import { type Answer, type NameServer, nameServer } from "../../support/network/site/name-server.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(60_000);

const LOOPBACK = { except: ["127.0.0.0/8"] };
const never = new AbortController().signal;

/** The names that exist, with their addresses. */
const zone = new Map<string, (asked: number, type: number) => Answer | null>();
let names: NameServer;
let outside: TestGate;
beforeAll(async () => {
  names = await nameServer((name, asked, type) => zone.get(name)?.(asked, type) ?? null);
  outside = await testGate({ resolvers: [names.address] });
});
afterAll(async () => {
  await outside[Symbol.asyncDispose]();
  await names[Symbol.asyncDispose]();
});

const at = (port: number, host = "127.0.0.1"): Destination => ({ kind: "address", host, port });
const named = (host: string, port = 443): Destination => ({ kind: "name", host, port });
const connect = (request: GateRequest): Promise<GateConnection> => outside.gate.connect(request, never);

async function verdict(attempt: Promise<unknown>): Promise<string> {
  const error = await attempt.then(
    () => "connected",
    (reason: unknown) => reason,
  );
  if (error === "connected") return error;
  if (!(error instanceof GateError)) throw error;
  return error.verdict;
}

async function textOf(connection: GateConnection): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of connection.chunks()) chunks.push(chunk);
  return Buffer.concat(chunks).toString();
}

describe("a connection", () => {
  test("passes bytes and the end of each direction on", async () => {
    await using server = await peer(echo);
    const connection = await connect(guestRequest(at(server.port), LOOPBACK));
    expect(connection.address).toBe("127.0.0.1");
    await connection.write(Buffer.from("some bytes"));
    connection.end();
    expect(await textOf(connection)).toBe("got some bytes");
    expect(await connection.ended).toBe("ended");
  });

  test("distinguishes a reset from an end, in both directions", async () => {
    await using server = await peer();
    const resetting = await connect(guestRequest(at(server.port), LOOPBACK));
    await until("the server has it", () => server.sockets.length === 1);
    server.sockets[0]?.resetAndDestroy();
    expect(await textOf(resetting)).toBe("");
    expect(await resetting.ended).toBe("reset");

    const given = await connect(guestRequest(at(server.port), LOOPBACK));
    await until("the server has it, too", () => server.sockets.length === 2);
    const code = new Promise((resolve) => server.sockets[1]?.once("error", (error) => resolve(error)));
    given.reset();
    expect(await code).toMatchObject({ code: "ECONNRESET" });
    expect(await given.ended).toBe("reset");
  });

  test("goes as fast as its slower side, and holds little meanwhile", async () => {
    const chunk = Buffer.alloc(65_536, "x");
    let sent = 0;
    await using server = await peer((socket) => {
      const pump = (): void => {
        do sent += chunk.byteLength;
        while (socket.write(chunk) && sent < 1e9);
        socket.once("drain", pump);
      };
      pump();
    });
    const connection = await connect(guestRequest(at(server.port), LOOPBACK));
    const chunks = connection.chunks()[Symbol.asyncIterator]();
    await chunks.next();
    let before = -1;
    await until("the server is held up", () => {
      const isStill = sent === before;
      before = sent;
      return isStill && sent > 0;
    });
    // The buffers of four sockets, which the kernel makes as large as it likes.
    expect(sent).toBeLessThan(64e6);
    connection.reset();
  });

  test("ends at once, even when its readers have taken nothing for long", async () => {
    const chunk = Buffer.alloc(65_536, "x");
    await using server = await peer((socket) => {
      socket.pause();
      while (socket.write(chunk));
    });
    const connection = await connect(guestRequest(at(server.port), LOOPBACK));
    let written = 0;
    let isHeldUp = false;
    const flood = (async () => {
      for (; !isHeldUp; written += chunk.byteLength) await connection.write(chunk);
    })();
    let before = -1;
    await until("the writer is held up", () => {
      const isStill = written === before;
      before = written;
      return isStill && written > 0;
    });
    isHeldUp = true;
    connection.reset();
    expect(await connection.ended).toBe("reset");
    await flood;
    // The server still reads nothing, so only the kernel knows.
    const address = (port = 0) => `0100007F:${port.toString(16).toUpperCase().padStart(4, "0")}`;
    const ends = [address(server.sockets[0]?.remotePort), address(server.port)];
    await until("the outer connection is gone", async () => {
      const connections = await readFile("/proc/net/tcp", "utf8");
      // Another program may have taken the port meanwhile, for other connections.
      return ![ends, ends.toReversed()].some((pair) => connections.includes(` ${pair.join(" ")} `));
    });
  });

  test("to a port without a listener is refused", async () => {
    const gone = await peer();
    await gone[Symbol.asyncDispose]();
    expect(await verdict(connect(guestRequest(at(gone.port), LOOPBACK)))).toBe("refused");
  });

  test("is ended when it is idle", async () => {
    await using server = await peer();
    const connection = await connect(guestRequest(at(server.port), { ...LOOPBACK, idleMs: 100 }));
    expect(await connection.ended).toBe("idle");
    await until("the server's socket is closed", () => server.sockets[0]?.destroyed === true);
  });

  test("is given up when its caller aborts", async () => {
    zone.set("late.example", () => "silence");
    const controller = new AbortController();
    const attempt = outside.gate.connect(guestRequest(named("late.example")), controller.signal);
    attempt.catch(() => "awaited below");
    await until("the name is asked for", () => names.asked.includes("late.example 1"));
    controller.abort(new Error("not wanted"));
    expect(await throwing(attempt)).toThrow("not wanted");
  });

  test("is one of many", async () => {
    await using server = await peer(echo);
    const talk = async (text: string): Promise<string> => {
      const connection = await connect(guestRequest(at(server.port), LOOPBACK));
      await connection.write(Buffer.from(text));
      connection.end();
      return await textOf(connection);
    };
    const texts = Array.from({ length: 200 }, (_, index) => `number ${index}`);
    expect(await Promise.all(texts.map(talk))).toEqual(texts.map((text) => `got ${text}`));
  });
});

describe("an address", () => {
  test("that is not public is refused in every spelling, and nothing is contacted", async () => {
    await using server = await peer();
    const spellings = ["127.0.0.1", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "0.0.0.0", "::"];
    for (const host of [
      ...spellings,
      "64:ff9b::127.0.0.1",
      "2002:7f00:1::",
      "169.254.169.254",
      "10.0.0.1",
      "fe80::1",
    ]) {
      expect([host, await verdict(connect(guestRequest(at(server.port, host))))]).toEqual([host, "denied_private"]);
    }
    expect(server.sockets).toHaveLength(0);
  });

  test("of this host is refused at the daemon's port for every caller", async () => {
    for (const host of ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"]) {
      for (const port of [8642, 8644]) {
        expect(await verdict(connect(guestRequest(at(port, host), { anyAddress: true })))).toBe("denied_private");
      }
    }
  });
});

describe("a name", () => {
  test("is connected to at an address that was judged, and asked for as it is", async () => {
    await using server = await peer(echo);
    zone.set("server.example", () => ({ addresses: ["127.0.0.1"] }));
    const connection = await connect(guestRequest(named("server.example", server.port), LOOPBACK));
    connection.end();
    expect(await textOf(connection)).toBe("got ");
    const asked = names.asked.filter((each) => each.startsWith("server"));
    expect(asked.sort()).toEqual(["server.example 1", "server.example 28"]);
  });

  test("that changes its address is judged again, and once for all of its addresses", async () => {
    await using server = await peer();
    zone.set("rebinding.example", (asked) => ({ addresses: [asked === 0 ? "127.0.0.2" : "127.0.0.1"], ttl: 0 }));
    const request = guestRequest(named("rebinding.example", server.port), { except: ["127.0.0.2"] });
    // There is no listener at the first address.
    expect(await verdict(connect(request))).toBe("refused");
    expect(await verdict(connect(request))).toBe("denied_private");
    zone.set("mixed.example", () => ({ addresses: ["1.1.1.1", "127.0.0.1"] }));
    zone.set("mixed6.example", () => ({ addresses: ["1.1.1.1", "::ffff:7f00:1"] }));
    for (const host of ["mixed.example", "mixed6.example"]) {
      expect(await verdict(connect(guestRequest(named(host, server.port))))).toBe("denied_private");
    }
    expect(server.sockets).toHaveLength(0);
  });

  test("is resolved again only when its answer is too old", async () => {
    zone.set("kept.example", () => ({ addresses: ["192.0.2.1"], ttl: 600 }));
    zone.set("short.example", () => ({ addresses: ["192.0.2.1"], ttl: 0 }));
    for (const name of ["kept.example", "short.example"]) {
      for (let times = 0; times < 3; times++) expect(await outside.gate.lookup(name, never)).toEqual(["192.0.2.1"]);
    }
    const count = (asked: string): number => names.asked.filter((each) => each === asked).length;
    expect([count("kept.example 1"), count("short.example 1")]).toEqual([1, 3]);
  });

  test.each([
    ["missing.example", () => null, "no_such_name"],
    ["empty.example", () => ({ addresses: [] }), "no_such_name"],
    ["loop.example", () => "loop", "no_such_name"],
    ["failing.example", () => "failure", "unreachable"],
    // Numbers are names here: nothing takes them for addresses.
    ["127.1", () => null, "no_such_name"],
    ["0x7f000001", () => null, "no_such_name"],
    ["2130706433", () => null, "no_such_name"],
  ] as [string, () => Answer | null, string][])("%s is what its name servers say", async (name, answer, expected) => {
    zone.set(name, answer);
    expect(await verdict(outside.gate.lookup(name, never))).toBe(expected);
    expect(names.asked).toContain(`${name} 1`);
  });

  test("has a time limit", async () => {
    zone.set("silent.example", () => "silence");
    zone.set("garbled.example", () => "nonsense");
    const verdicts = ["silent.example", "garbled.example"].map((name) => verdict(outside.gate.lookup(name, never)));
    expect(await Promise.all(verdicts)).toEqual(["timed_out", "unreachable"]);
  });

  test("with one family does not wait for the other", async () => {
    const late = Promise.withResolvers<void>();
    zone.set("half.example", (_, type) => ({
      addresses: ["192.0.2.5"],
      ...(type === 1 ? {} : { after: late.promise }),
    }));
    expect(await outside.gate.lookup("half.example", never)).toEqual(["192.0.2.5"]);
    late.resolve();
  });

  test("with very many addresses is cut", async () => {
    zone.set("huge.example", () => ({
      addresses: Array.from({ length: 3000 }, (_, index) => `1.2.${index >> 8}.${index & 255}`),
    }));
    const addresses = await outside.gate.lookup("huge.example", never);
    expect(addresses?.length).toBeGreaterThan(0);
    expect(addresses?.length).toBeLessThanOrEqual(32);
  });

  test("localhost is never asked for, and is this host", async () => {
    expect(await outside.gate.lookup("localhost", never)).toEqual(["127.0.0.1", "::1"]);
    expect(await verdict(connect(guestRequest(named("localhost"))))).toBe("denied_private");
    expect(names.asked.filter((each) => each.startsWith("localhost"))).toEqual([]);
  });

  test("is looked up in /etc/hosts only when the operator wrote it", async () => {
    await using scratch = await scratchDirectory(tmpdir(), "coppice-hosts-");
    const files = { resolvConf: join(scratch.path, "resolv.conf"), hosts: join(scratch.path, "hosts") };
    await writeFile(files.hosts, "127.0.0.1 Nas.Lan nas # the shelf\n");
    await writeFile(files.resolvConf, "search example.org\nnameserver 127.0.0.1\n");
    await using own = await testGate({ resolvers: [names.address] }, { host: new HostNetwork(files) });
    expect(await own.gate.lookup("nas.lan", never, { named: true })).toEqual(["127.0.0.1"]);
    expect(await verdict(own.gate.lookup("nas.lan", never))).toBe("no_such_name");
    await using server = await peer(echo);
    const request = guestRequest(named("nas.lan", server.port), { anyAddress: true });
    const connection = await own.gate.connect(request, never);
    connection.end();
    expect(await textOf(connection)).toBe("got ");
  });
});

describe("the process", () => {
  test("that is killed loses its connections, and the next one starts another", async () => {
    await using own = await testGate();
    await using server = await peer(echo);
    const request = guestRequest(at(server.port), LOOPBACK);
    const connection = await own.gate.connect(request, never);
    // Its reader is not there.
    await connection.write(Buffer.from("some bytes"));
    const first = own.gate.pid ?? 0;
    process.kill(first, "SIGKILL");
    expect(await connection.ended).toBe("lost");
    const next = await own.gate.connect(request, never);
    next.end();
    expect(await textOf(next)).toBe("got ");
    expect(own.gate.pid).not.toBe(first);
    expect(own.warnings.join()).toContain("the connecting process has ended");
    await until("the first one's files are removed", async () => (await readdir(own.directory)).length === 1);
  });

  test("that dies while it is asked is started again and asked once more", async () => {
    zone.set("dying.example", () => "silence");
    await using own = await testGate({ resolvers: [names.address] });
    const attempt = own.gate.lookup("dying.example", never);
    await until("it is asked", () => names.asked.includes("dying.example 1"));
    zone.set("dying.example", () => ({ addresses: ["192.0.2.9"] }));
    process.kill(own.gate.pid ?? 0, "SIGKILL");
    expect(await attempt).toEqual(["192.0.2.9"]);
  });

  test("ends when it was not used for a while, and leaves nothing behind", async () => {
    await using own = await testGate({}, { idleMs: 50 });
    expect(own.gate.pid).toBeNull();
    await verdict(own.gate.lookup("some.example", never));
    expect(own.gate.pid).not.toBeNull();
    expect(own.gate.residentBytes()).toBeGreaterThan(1_000_000);
    await until("it has ended", () => own.gate.pid === null);
    expect(own.gate.residentBytes()).toBe(0);
    await until("its files are removed", async () => (await readdir(own.directory)).length === 0);
    expect(await verdict(own.gate.lookup("some.example", never))).toBe("no_such_name");
    expect(own.warnings).toEqual([]);
  });

  test("ends with its daemon, connections or not", async () => {
    const own = await testGate();
    await using server = await peer();
    const connection = await own.gate.connect(guestRequest(at(server.port), LOOPBACK), never);
    const pid = own.gate.pid ?? 0;
    await own[Symbol.asyncDispose]();
    expect(await connection.ended).toBe("lost");
    expect(() => process.kill(pid, 0)).toThrow("ESRCH");
    expect(await verdict(own.gate.lookup("some.example", never))).toBe("unreachable");
  });
});

test("it reports whether a name server answers, and the proxy's fault, as doctor does by itself", async () => {
  await using failing = await nameServer(() => "failure");
  await using silent = await nameServer(() => "silence");
  expect(outside.gate.servers).toEqual([names.address]);
  const answers = [names.address, failing.address, silent.address].map((server) =>
    outside.gate.nameServerAnswers(server),
  );
  expect(await Promise.all(answers)).toEqual([true, true, false]);
  expect([outside.gate.proxy, await outside.gate.proxyFault()]).toEqual([null, null]);

  await using good = await httpProxy(503);
  await using other = await peer((socket) => void socket.end("220 mail.example ESMTP\r\n"));
  const credentials = { user: "alice", password: "s3cret pass" };
  const faultOf = async (port: number, login: typeof credentials | null) => {
    const proxy = { kind: "http", host: "127.0.0.1", port, credentials: login } as const;
    await using behind = await testGate({ resolvers: [names.address], proxy });
    expect(behind.gate.proxy).toMatchObject({ host: "127.0.0.1", port });
    return await behind.gate.proxyFault();
  };
  expect(await faultOf(good.port, credentials)).toBeNull();
  expect(await faultOf(good.port, null)).toContain("does not accept the credentials (407)");
  expect(await faultOf(other.port, null)).toContain("does not speak HTTP");
});
