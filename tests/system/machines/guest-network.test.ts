import { afterAll, afterEach, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { AgentFrame, CONNECTIONS_COUNT_MAX, NetworkFlag, Refusal } from "../../../src/vm/agent/protocol.ts";
import type { Machine } from "../../../src/vm/vmm.ts";
import type { Judge, Verdict } from "../../support/guests/raw-guest.ts";
import { compileProbe, NO_SUCH_NAME, RawGuest, untilBound } from "../../support/guests/raw-guest.ts";
import { openVmHost, type VmHost } from "../../support/guests/vm.ts";
import { until } from "../../support/waiting.ts";

// A busy host boots an emulated machine in many times the usual three seconds.
setDefaultTimeout(120_000);
/** Ports that the judge of these tests knows; a port below 10 is refused with that reason. */
const [ECHO, CLOSED, RESETS] = [80, 81, 82];
const [TYPE_A, TYPE_PTR, TYPE_AAAA, TYPE_HTTPS] = [1, 12, 28, 65];
const LIBRARY = "/lib/x86_64-linux-gnu/libc.so.6";
const LOADER = "/lib64/ld-linux-x86-64.so.2";
/** A program of the guest that accepts one connection. */
const LISTEN_AT_700 = `busybox nc -l -p 700 </dev/null >/dev/null & ${untilBound("tcp", 700)}`;

let host: VmHost;
let server: Server;
let guest: RawGuest;
const machines: Machine[] = [];
const sockets: Socket[] = [];

/** A clone of the template, with a network or without. */
async function start(flags: number): Promise<RawGuest> {
  const machine = await host.vmm.clone(await host.template());
  machines.push(machine);
  const started = new RawGuest(machine.channel);
  await started.sync();
  await machine.attach(await host.disks(machine));
  await started.mount();
  await started.put("/probe", readFileSync(await compileProbe(host.directory, "musl")));
  if (flags !== 0) expect((await started.network(flags)).type).toBe(AgentFrame.done);
  started.judge = judge;
  return started;
}

/** Names of example.com exist. Every address can be connected to, as far as the port allows. */
const judge: Judge = {
  open: ({ port }): Verdict => {
    if (port < 10) return { refusal: port };
    const { port: listening } = server.address() as { port: number };
    return port === ECHO || port === RESETS ? { port: listening } : { port: 1 };
  },
  resolve: (name) => (/(^|\.)example\.com$/.test(name) ? 0 : NO_SUCH_NAME),
};

beforeAll(async () => {
  host = await openVmHost();
  // Sends back the number of bytes once the peer has closed its side; resets the connection at an R.
  server = createServer({ allowHalfOpen: true }, (socket) => {
    let received = 0;
    sockets.push(socket);
    socket.on("error", () => undefined);
    socket.on("data", (chunk) => {
      received += chunk.length;
      if (chunk[0] === "R".charCodeAt(0)) socket.resetAndDestroy();
    });
    socket.on("end", () => socket.end(Buffer.alloc(received, "a")));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  guest = await start(NetworkFlag.on);
});
afterEach(() => {
  guest.judge = judge;
  guest.wishes.length = 0;
  guest.names.length = 0;
  guest.seen.length = 0;
});
afterAll(async () => {
  for (const machine of machines) await machine[Symbol.asyncDispose]();
  for (const socket of sockets) socket.destroy();
  server.close();
  await host[Symbol.asyncDispose]();
});

/** The first word of what `probe connect` prints in each of several commands. */
async function results(probes: readonly string[], of = guest): Promise<string[]> {
  const { stdout } = await of.shell(probes.map((probe) => `/probe ${probe}`).join("; "));
  return stdout.split("\n").slice(0, -1);
}

/** The result of a connect, and the peer that the program sees. */
const withoutTime = (line: string): string => line.replace(/ \d+ /, " ");

async function connects(probes: readonly string[], of = guest): Promise<string[]> {
  return (
    await results(
      probes.map((probe) => `connect ${probe}`),
      of,
    )
  ).map(withoutTime);
}

describe("without a network", () => {
  let off: RawGuest;
  beforeAll(async () => {
    off = await start(0);
  });

  test("connections have no route, names do not exist, and the host gets no request", async () => {
    const addresses = ["1.2.3.4 80", "-n 1.2.3.4 80", "2001:db8::1 80", "-4 1.2.3.4 80"];
    expect(await connects(addresses, off)).toEqual(addresses.map(() => "ENETUNREACH -"));
    expect(await results(["look example.com", "look localhost", "look box"], off)).toEqual([
      "EAI_NONAME",
      "127.0.0.1",
      "127.0.0.1",
    ]);
    expect([off.wishes, off.names, off.seen]).toEqual([[], [], []]);
  });

  test("loopback works", async () => {
    const { stdout } = await off.shell(`${LISTEN_AT_700}; /probe half 127.0.0.1 700 9; /probe connect 127.0.0.1 701`);
    expect(stdout).toMatch(/^0\nECONNREFUSED/);
  });

  test("that was removed, connections fail as before", async () => {
    await off.network(NetworkFlag.on);
    expect(await connects(["1.2.3.4 80"], off)).toEqual(["OK 1.2.3.4"]);
    await off.network(0);
    expect(await connects(["1.2.3.4 80"], off)).toEqual(["ENETUNREACH -"]);
  });
});

describe("a connection", () => {
  test("is made when the host has connected, and has the peer that the program asked for", async () => {
    const probes = [
      "1.2.3.4 80",
      "-n 1.2.3.4 80",
      "-4 1.2.3.4 80",
      "-t 1.2.3.4 80",
      "2001:db8::1 80",
      "-n 2001:db8::1 80",
      "-b 4444 1.2.3.4 80",
      "-b 4444 1.2.3.4 80",
      "-b 4444 2001:db8::1 80",
    ];
    const peers = ["1.2.3.4", "1.2.3.4", "::ffff:1.2.3.4", "1.2.3.4", "2001:db8::1", "2001:db8::1"];
    expect(await connects(probes)).toEqual([...peers, "1.2.3.4", "1.2.3.4", "2001:db8::1"].map((peer) => `OK ${peer}`));
    expect(guest.wishes).toHaveLength(probes.length);
    expect(guest.wishes[0]).toEqual({ kind: "address", host: "1.2.3.4", port: 80 });
    expect(guest.wishes[4]).toEqual({ kind: "address", host: "2001:db8:0:0:0:0:0:1", port: 80 });
  });

  test("that is refused fails with the error of its reason, and the host is asked once", async () => {
    const expected: readonly [reason: number, ipv4: string, ipv6: string][] = [
      [Refusal.denied, "EHOSTUNREACH", "EACCES"],
      [Refusal.refused, "ECONNREFUSED", "ECONNREFUSED"],
      [Refusal.unreachable, "EHOSTUNREACH", "EHOSTUNREACH"],
      [Refusal.timedOut, "EHOSTUNREACH", "EHOSTUNREACH"],
      [Refusal.nameGone, "EHOSTUNREACH", "EHOSTUNREACH"],
      [Refusal.noNetwork, "ENETUNREACH", "ENETUNREACH"],
      [CLOSED, "ECONNREFUSED", "ECONNREFUSED"],
    ];
    const probes = expected.flatMap(([port]) => [`1.2.3.4 ${port}`, `-n 1.2.3.4 ${port}`, `2001:db8::1 ${port}`]);
    const outcomes = expected.flatMap(([, ipv4, ipv6]) => [ipv4, ipv4, ipv6].map((name) => `${name} -`));
    expect(await connects(probes)).toEqual(outcomes);
    expect(guest.wishes).toHaveLength(probes.length);
  });

  test("beyond a limit is retried until there is room", async () => {
    let tries = 0;
    guest.judge = { ...judge, open: (wish) => (++tries < 3 ? { refusal: Refusal.limited } : judge.open(wish)) };
    expect(await connects(["1.2.3.4 80"])).toEqual(["OK 1.2.3.4"]);
    expect(tries).toBe(3);
  });

  test("ends in each direction separately, and carries more than its credit", async () => {
    expect(await results(["half 1.2.3.4 80 300000", "half 2001:db8::1 80 1500000", "half 1.2.3.4 80 0"])).toEqual([
      "300000",
      "1500000",
      "0",
    ]);
    // An earlier connection may end only now.
    expect(guest.seen.filter((type) => type === AgentFrame.done).length).toBeGreaterThanOrEqual(3);
    expect(guest.seen).not.toContain(AgentFrame.netReset);
  });

  test("is reset when the host resets it", async () => {
    const run = guest.shell("echo R | busybox nc 1.2.3.4 82; /probe hold 1.2.3.4 80");
    const before = sockets.length;
    await until("both have connected", () => sockets.length === before + 2);
    sockets.at(-1)?.resetAndDestroy();
    expect((await run).stdout).toMatch(/^(reset|ECONNRESET)\n$/);
  });

  test("that the program abandoned is reset, even if the host accepts it later", async () => {
    const answer = Promise.withResolvers<Verdict>();
    guest.judge = { ...judge, open: () => answer.promise };
    expect((await guest.shell("busybox timeout 1 /probe connect 1.2.3.4 80; echo gone")).stdout).toBe("gone\n");
    answer.resolve(judge.open({ kind: "address", host: "", port: ECHO }) as Verdict);
    await until("the agent resets it", () => guest.seen.includes(AgentFrame.netReset));
    expect(guest.wishes).toHaveLength(1);
  });

  test("can be one of very many at once; those without room wait", async () => {
    const count = CONNECTIONS_COUNT_MAX + 20;
    const script = `i=0; while [ $i -lt ${count} ]; do /probe half 1.2.3.4 80 1000 & i=$((i+1)); done; wait`;
    const lines = (await guest.shell(script)).stdout.trim().split("\n");
    expect(lines).toEqual(Array.from({ length: count }, () => "1000"));
  });

  test("of UDP is refused at once, so that programs use TCP", async () => {
    expect(await results(["datagram 1.2.3.4 443", "datagram 2001:db8::1 443"])).toEqual([
      "ECONNREFUSED",
      "ECONNREFUSED",
    ]);
    expect(guest.seen).toEqual([]);
  });
});

describe("names", () => {
  test("have an address each, by which the host learns the name", async () => {
    const [first = "", second = "", again = ""] = await results([
      "look example.com",
      "look www.EXAMPLE.com",
      "look example.com",
    ]);
    expect(first).toMatch(/^198\.18\.1\.\d+$/);
    expect([second === first, again]).toEqual([false, first]);
    guest.wishes.length = 0;
    await guest.shell(`/probe connect ${second} 80; /probe connect 198.18.200.1 80`);
    expect(guest.wishes).toEqual([
      { kind: "name", host: "www.example.com", port: 80 },
      { kind: "address", host: "198.18.200.1", port: 80 },
    ]);
  });

  test("that are not allowed, or are invalid, do not exist", async () => {
    expect(await results(["look example.org", "look no!name.example.com"])).toEqual(["EAI_NONAME", "EAI_NONAME"]);
    expect(guest.names).not.toContain("no!name.example.com");
  });

  test("are answered at port 53 of every address", async () => {
    const servers = ["127.0.0.1", "127.0.0.53", "::1", "8.8.8.8", "2001:db8::53", "192.168.1.1"];
    const [first, ...others] = await results(servers.map((address) => `ask ${address} 53 ${TYPE_A} example.com`));
    expect(first).toMatch(/^0 c61201..$/);
    expect(others.filter((answer) => answer !== first)).toEqual([]);
  });

  test("have no other records, but their addresses have names", async () => {
    const name = "example.com";
    const [address = ""] = await results([`ask 8.8.8.8 53 ${TYPE_A} ${name}`]);
    const reverse = Buffer.from(address.slice(2), "hex").reverse().join(".");
    const wire = Buffer.from("\x07example\x03com\0").toString("hex");
    expect(
      await results([
        `ask 8.8.8.8 53 ${TYPE_AAAA} ${name}`,
        `ask 8.8.8.8 53 ${TYPE_HTTPS} ${name}`,
        `ask 8.8.8.8 53 ${TYPE_HTTPS} example.org`,
        `ask 8.8.8.8 53 ${TYPE_PTR} ${reverse}.in-addr.arpa`,
        `ask 8.8.8.8 53 ${TYPE_PTR} 4.3.2.1.in-addr.arpa`,
        `ask 8.8.8.8 53 ${TYPE_A} box`,
        `ask 8.8.8.8 53 ${TYPE_A} deep.localhost`,
        `ask 8.8.8.8 53 ${TYPE_AAAA} localhost`,
      ]),
    ).toEqual(["0 ", "0 ", "3 ", `0 ${wire}`, "3 ", "0 7f000001", "0 7f000001", "0 "]);
  });

  test("are found by the C library of most distributions, with any resolv.conf", async () => {
    await guest.put("/glibc", readFileSync(await compileProbe(host.directory, "glibc")));
    await guest.shell("busybox mkdir -p /lib64 /lib/x86_64-linux-gnu /etc");
    await guest.put(LIBRARY, readFileSync(LIBRARY));
    await guest.put(LOADER, readFileSync(LOADER));
    const [address = ""] = await results(["look example.com"]);
    const configurations = [
      "",
      "nameserver 10.0.0.1\nsearch lan example.org",
      "nameserver 2001:4860:4860::8888",
      "nameserver 127.0.0.53\noptions edns0 trust-ad",
      "nameserver ::1\noptions use-vc",
      "nameserver 9.9.9.9\noptions use-vc single-request",
    ];
    for (const text of configurations) {
      const script = `busybox printf '${text.replaceAll("\n", "\\n")}\\n' >/etc/resolv.conf; /glibc look example.com`;
      expect([text, (await guest.shell(`${script}; /glibc look example.net; /glibc look box`)).stdout]).toEqual([
        text,
        `${address}\nEAI_NONAME\n127.0.0.1\n`,
      ]);
    }
    const { stdout } = await guest.shell(
      "busybox rm /etc/resolv.conf; /glibc look example.com; /glibc connect -n 1.2.3.4 81",
    );
    expect(stdout).toMatch(new RegExp(`^${address}\nECONNREFUSED`));
  });
});

describe("programs of the guest that serve", () => {
  test("are reached at addresses that they add, and only there", async () => {
    const script = [
      `busybox ip addr add 10.9.9.9/32 dev lo; ${LISTEN_AT_700}`,
      "/probe half 10.9.9.9 700 5; /probe connect 10.9.9.9 701",
      "busybox ip addr del 10.9.9.9/32 dev lo",
      "/probe connect 10.9.9.9 80",
    ].join("\n");
    expect((await guest.shell(script)).stdout).toMatch(/^0\nECONNREFUSED .*\nOK /);
    expect(guest.wishes).toEqual([{ kind: "address", host: "10.9.9.9", port: ECHO }]);
  });

  test("names get the questions to loopback addresses, as long as they run", async () => {
    const ask = (server: string) => `/probe ask ${server} 53 ${TYPE_A} example.com`;
    const elsewhere = `busybox unshare -n /probe echo 53 & busybox sleep 1; ${ask("127.0.0.1")}; kill $!`;
    expect((await guest.shell(elsewhere)).stdout).toBe("0 c6120100\n");
    const script = `/probe echo 53 & ${untilBound("udp", 53)}; ${ask("127.0.0.1")}; ${ask("8.8.8.8")}; wait`;
    // The program's answer is the question, without a record.
    expect((await guest.shell(script)).stdout.split("\n").sort()).toEqual(["", "0 ", "0 c6120100", "29"]);
    expect(await results([`ask 127.0.0.1 53 ${TYPE_A} example.com`])).toEqual(["0 c6120100"]);
  });

  test("another network namespace give its programs the same network", async () => {
    const inside = [
      "while ! busybox ip link set veth0 up 2>/dev/null; do busybox sleep 0.1; done",
      "busybox ip addr add 10.7.0.2/24 dev veth0",
      "busybox ip route add default via 10.7.0.1",
      "/probe connect 1.2.3.4 80; /probe connect 1.2.3.4 81; /probe connect 1.2.3.4 1",
      `/probe ask 8.8.8.8 53 ${TYPE_A} example.com; /probe half 1.2.3.4 80 100000`,
      "/probe half 10.7.0.1 700 5; /probe datagram 1.2.3.4 443",
    ].join("\n");
    const script = [
      `busybox unshare -n /bin/sh -c '${inside}' &`,
      "inside=$!",
      "busybox ip link add v0 type veth",
      "busybox ip addr add 10.7.0.1/24 dev v0",
      "busybox ip link set v0 up",
      `${LISTEN_AT_700}; busybox ip link set veth0 netns $inside; wait $inside`,
    ].join("\n");
    const { stdout } = await guest.shell(script);
    expect(stdout.split("\n").map(withoutTime)).toEqual([
      "OK 1.2.3.4",
      "ECONNREFUSED -",
      "EHOSTUNREACH -",
      "0 c6120100",
      "100000",
      "0",
      "ECONNREFUSED",
      "",
    ]);
  });
});

describe("a hostile guest", () => {
  test("that connects to the agent's own ports reaches nothing", async () => {
    const ports = "busybox netstat -tln | busybox awk '/:::/ {sub(/.*:/, \"\", $4); print $4}'";
    const probe = "busybox timeout 1 /probe hold $a $p";
    const script = `for p in $(${ports}); do for a in 127.0.0.1 127.0.0.2 ::1 192.0.2.2; do ${probe}; done; done`;
    // The name server over TCP waits for questions.
    expect((await guest.shell(script)).stdout).toMatch(/^((reset|ECONNRESET)\n){4}$/);
    expect(guest.seen).toEqual([]);
  });

  test("that forges the agent's mark reaches nothing", async () => {
    // The kernel completes the connection, and the agent resets it.
    expect((await guest.shell("/probe forge 1.2.3.4 80 0x00c0ffee")).stdout).toMatch(/^(connected, )?ECONNRESET\n$/);
    expect(guest.seen).toEqual([]);
  });

  test("that floods is bounded, and the agent answers meanwhile and afterwards", async () => {
    // No request is answered, so the table fills up and stays full.
    guest.judge = { ...judge, open: () => null };
    const flood = guest.shell("/probe flood 1.2.3.4 5000");
    expect((await guest.shell("echo alive")).stdout).toBe("alive\n");
    expect((await flood).stdout).toBe("5000\n");
    expect(guest.wishes).toHaveLength(CONNECTIONS_COUNT_MAX);
    const [address] = await results([`ask 8.8.8.8 53 ${TYPE_A} example.com`]);
    expect(address).toBe("0 c6120100");
  });

  test("that writes over the kernel's maps and detaches its programs loses its network, and the agent stays alive", async () => {
    const ruined = await start(NetworkFlag.on);
    ruined.judge = { ...judge, open: () => null };
    const waiting = ruined.shell("busybox timeout 3 /probe connect 1.2.3.4 80");
    await until("the connection is held", () => ruined.wishes.length === 1);
    expect((await ruined.shell("/probe ruin")).stdout).toBe("4 maps, 3 links\n");
    await waiting;
    const script = "busybox timeout 3 /probe connect 1.2.3.5 80; /probe connect 127.0.0.1 80; echo alive";
    expect((await ruined.shell(script)).stdout).toMatch(/\nalive\n$/);
    expect((await ruined.network(0)).type).toBe(AgentFrame.done);
  });

  test("that takes the routes away loses its network, and the agent stays alive", async () => {
    const lost = await start(NetworkFlag.on);
    const script =
      "busybox ip route del local default; /probe connect 1.2.3.4 80; busybox ip link set lo down; echo alive";
    expect((await lost.shell(script)).stdout).toMatch(/^ENETUNREACH .*\nalive\n$/);
    expect((await lost.shell("busybox ip link set lo up; /probe connect 127.0.0.1 80")).stdout).toMatch(
      /^ECONNREFUSED/,
    );
  });
});
