import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { processesWith } from "../support/appliance/appliance.ts";
import { Guest } from "../support/network/guest.ts";
import { PROBES } from "../support/network/guest-image.ts";
import { ring } from "../support/network/ring.ts";
import { ADDRESSES } from "../support/network/site/site.ts";
import { PEER_PORTS } from "../support/network/site/site-peers.ts";
import { resultOf } from "../support/runs.ts";
import { until } from "../support/waiting.ts";

setDefaultTimeout(240_000);

/** Largest growth of the daemon by any guest, in `bytes`: 256 connections with 256 KiB each way, and a margin. */
const GROWTH_BYTES_MAX = 192 * 1_048_576;

let guest: Guest;

beforeAll(async () => {
  guest = await Guest.start();
  // The process that connects runs from now on.
  await guest.probe("connect www.test 80");
});

afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

/** Resident memory of the daemon and all that it has started but machines, in `bytes`. */
async function residentBytes(): Promise<number> {
  const { appliance } = ring();
  const own = new Map<number, number>();
  // A process that has just ended has no status.
  const status = (pid: number): Promise<string> => readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
  const numberOf = (text: string, name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+)`, "m").exec(text)?.[1] ?? 0);
  const statuses = new Map<number, string>();
  for (const { pid, argv } of await processesWith("")) {
    if (!argv.includes("qemu-system")) statuses.set(pid, await status(pid));
  }
  const isOf = (pid: number): boolean =>
    pid === appliance.pid || (pid > 1 && isOf(numberOf(statuses.get(pid) ?? "", "PPid")));
  for (const [pid, text] of statuses) if (isOf(pid)) own.set(pid, 1024 * numberOf(text, "VmRSS"));
  expect(own.size).toBeGreaterThan(1);
  return [...own.values()].reduce((sum, bytes) => sum + bytes, 0);
}

/** Another instance, which has nothing to do with the hostile one, still has its network. */
async function othersWork(): Promise<void> {
  const { appliance, image } = ring();
  const network = { allow: [{ host: "www.test" }] };
  const result = resultOf(
    await appliance.run(image, "curl -sS http://www.test/bytes/5 | wc -c", { network, disposable: true }),
  );
  expect([result.out, result.err]).toEqual(["5\n", ""]);
}

test("a flood of SYNs fills tables, and nothing else; others do not notice, and it passes", async () => {
  const before = await residentBytes();
  const sent = await guest.probe(`flood ${ADDRESSES.peers} 20000 0`, "musl");
  expect(Number(sent)).toBeGreaterThan(1000);
  expect(await guest.output("echo alive")).toBe("alive");
  await othersWork();
  expect((await residentBytes()) - before).toBeLessThan(GROWTH_BYTES_MAX);
  await until(
    "the guest connects again",
    async () => {
      return (await guest.probe(`connect peer.test ${PEER_PORTS.echo}`)).startsWith("connected");
    },
    60_000,
  );
});

test("SYNs with any mark open nothing outside", async () => {
  const { peers } = ring().site;
  await using forger = await Guest.start({ network: { allow: [{ host: "www.test" }] } });
  const before = Object.values(peers.accepted).reduce((sum, count) => sum + count, 0);
  for (let bit = 0; bit < 32; bit += 1) await forger.probe(`flood ${ADDRESSES.peers} 4 ${2 ** bit}`, "musl");
  await forger.probe(`flood ${ADDRESSES.peers} 4 0xffffffff`, "musl");
  expect(Object.values(peers.accepted).reduce((sum, count) => sum + count, 0)).toBe(before);
  expect(await forger.output("curl -sS http://www.test/bytes/5 | wc -c")).toBe("5");
});

test("connections without a reader that never close cost a bounded amount, and end with the instance", async () => {
  const { peers } = ring().site;
  const before = await residentBytes();
  const hoarder = await Guest.start();
  // Answers of 50 MB each that are never read, and uploads that the server does not read.
  const script = `
import socket, threading, time
open = []
for n in range(40):
  s = socket.create_connection(("www.test", 80))
  s.sendall(b"GET /bytes/50000000 HTTP/1.1\\r\\nHost: www.test\\r\\n\\r\\n")
  open.append(s)
for n in range(20):
  s = socket.create_connection(("peer.test", ${PEER_PORTS.mute}))
  s.setblocking(False)
  open.append(s)
  try:
    while True: s.send(b"x" * 65536)
  except BlockingIOError: pass
print("full", flush=True)
time.sleep(1000)`;
  const spid = await hoarder.begin(`python3 -c '${script}'`);
  await until("all are full", async () => (await hoarder.written(spid)).out === "full\n", 120_000);
  expect((await residentBytes()) - before).toBeLessThan(GROWTH_BYTES_MAX);
  await othersWork();
  await hoarder.end();
  await until("the servers have noticed", () => peers.open.size === 0);
});

describe("a guest that takes its own network apart", () => {
  test("deletes routes and addresses: it has no network, and another has", async () => {
    await using vandal = await Guest.start();
    await vandal.run(
      "ip route flush table main; ip -6 route flush table main; ip address flush dev lo; ip link set lo down",
    );
    expect(await vandal.probe("connect www.test 80")).not.toContain("connected");
    await othersWork();
  });

  test("detaches the programs of the kernel: the rules hold, and others do not notice", async () => {
    const { peers } = ring().site;
    const before = peers.accepted["echo"];
    await using vandal = await Guest.start({ network: { allow: [{ host: "www.test" }] } });
    expect(await vandal.probe("connect www.test 80")).toContain("connected");
    expect(Number(await vandal.probe("detach"))).toBeGreaterThan(0);
    for (const target of [`${ADDRESSES.peers} ${PEER_PORTS.echo}`, "www.test 80"]) {
      expect(await vandal.probe(`connect ${target}`)).not.toContain("connected");
    }
    expect(peers.accepted["echo"]).toBe(before as number);
    await othersWork();
  });

  test("runs a name server of its own, which its programs use", async () => {
    await using own = await Guest.start();
    const server = `
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
print("up", flush=True)
while True:
  q, who = s.recvfrom(512)
  s.sendto(q[:2] + b"\\x81\\x80" + q[4:6] + b"\\0\\1\\0\\0\\0\\0" + q[12:] + b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\1\\0\\4\\x0a\\1\\2\\3", who)`;
    const spid = await own.begin(`python3 -c '${server}'`);
    await until("it serves", async () => (await own.written(spid)).out === "up\n");
    const ask = `exec 2>&1; echo nameserver 127.0.0.1 > /etc/resolv.conf; ${PROBES.musl} lookup own.invalid`;
    expect(await own.output(ask)).toContain("10.1.2.3");
  });
});

test("connections beyond the limit of a second wait, and then succeed", async () => {
  const script = `
import socket
for n in range(320):
  socket.create_connection(("peer.test", ${PEER_PORTS.echo})).close()
print("done")`;
  await using eager = await Guest.start();
  expect(await eager.output(`python3 -c '${script}'`)).toBe("done");
});

test("connections that are reset at once, and names that nothing connects to, are all in the audit", async () => {
  const { peers, names } = ring().site;
  for (const name of ["data-1.test", "data-2.test"]) names.set(name, ADDRESSES.peers);
  const before = peers.accepted["echo"] ?? 0;
  const script = `
import socket, struct, time
for n in range(150):
  s = socket.socket()
  s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
  s.setblocking(False)
  s.connect_ex(("${ADDRESSES.peers}", ${PEER_PORTS.echo}))
  time.sleep(n % 5 / 1000)
  s.close()
for n in (1, 2): socket.gethostbyname("data-%d.test" % n)
print("done")`;
  await using hasty = await Guest.start();
  expect(await hasty.output(`python3 -c '${script}'`)).toBe("done");
  const { audit } = await hasty.end();
  const reached = audit.entries.filter(({ host, verdict }) => host === ADDRESSES.peers && verdict === "allowed");
  const connectionCount = reached.reduce((sum, { connections }) => sum + Number(connections), 0);
  expect((peers.accepted["echo"] ?? 0) - before).toBeGreaterThan(0);
  expect(connectionCount).toBeGreaterThanOrEqual((peers.accepted["echo"] ?? 0) - before);
  for (const host of ["data-1.test", "data-2.test"]) {
    expect(audit.entries).toContainEqual(expect.objectContaining({ host, port: null, verdict: "allowed" }));
  }
});

test("names by the thousand are judged, counted and forgotten", async () => {
  const { nameServer } = ring().site;
  const before = await residentBytes();
  const asked = nameServer.asked.length;
  await using curious = await Guest.start({ network: { allow: [{ host: "www.test" }] } });
  const script = `
import socket
for n in range(3000):
  try: socket.gethostbyname("secret-%d.example" % n)
  except OSError: pass
print(socket.gethostbyname("www.test"))`;
  expect(await curious.output(`python3 -c '${script}'`)).toMatch(/^198\.1[89]\./);
  expect(nameServer.asked.slice(asked).filter((question) => question.includes("example"))).toEqual([]);
  expect((await residentBytes()) - before).toBeLessThan(GROWTH_BYTES_MAX);
  const { audit } = await curious.end();
  expect([audit.entries.length, audit.truncated]).toEqual([500, true]);
});
