import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { CliProcess } from "../support/cli/cli-process.ts";
import { Guest } from "../support/network/guest.ts";
import { PROBES } from "../support/network/guest-image.ts";
import { ring } from "../support/network/ring.ts";
import { ADDRESSES } from "../support/network/site/site.ts";
import { PEER_PORTS } from "../support/network/site/site-peers.ts";
import { until } from "../support/waiting.ts";

setDefaultTimeout(180_000);

/** Of one instance, as the agent has it. */
const CONNECTIONS_COUNT_MAX = 256;

let guest: Guest;

beforeAll(async () => {
  guest = await Guest.start();
});

afterAll(async () => {
  await guest[Symbol.asyncDispose]();
});

/** A program in Python, as a shell command. */
const python = (text: string): string => `python3 - <<'END'\n${text}\nEND`;

describe("a connection", () => {
  test("opens when the one outside does; its peer is the requested address", async () => {
    const port = PEER_PORTS.echo;
    expect(await guest.probe(`connect ${ADDRESSES.peers} ${port}`)).toBe(`connected ${ADDRESSES.peers} ${port}`);
    expect(await guest.probe(`connect ${ADDRESSES.web6} 80`, "musl")).toBe(`connected ${ADDRESSES.web6} 80`);
    expect(await guest.probe(`connect ::ffff:${ADDRESSES.peers} ${port}`)).toContain(`${ADDRESSES.peers} ${port}`);
    expect(await guest.probe("later www.test 80")).toBe("EINPROGRESS connected");
    expect(await guest.probe("connect www.test 80")).toMatch(/^connected 198\.1[89]\.\d+\.\d+ 80$/);
  });

  test("passes bytes both ways, and half closes: the answer arrives after the end of the request", async () => {
    const script = `
import socket
s = socket.create_connection(("peer.test", ${PEER_PORTS.sum}))
s.sendall(b"x" * 300000)
s.shutdown(socket.SHUT_WR)
print(s.makefile().read().strip())
s = socket.create_connection(("peer.test", ${PEER_PORTS.echo}))
sent = bytes(range(256)) * 400
s.sendall(sent)
s.shutdown(socket.SHUT_WR)
got = b""
while chunk := s.recv(65536): got += chunk
print(got == sent)`;
    expect(await guest.output(python(script))).toBe("300000\nTrue");
  });

  test("is reset by the server, and by the client, and its ports are reused", async () => {
    const script = `
import socket, struct
s = socket.create_connection(("peer.test", ${PEER_PORTS.reset}))
s.sendall(b"x")
try: print(s.recv(1))
except ConnectionResetError: print("reset")
for turn in range(3):
  s = socket.socket()
  s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  s.bind(("", 45678))
  s.connect(("peer.test", ${PEER_PORTS.echo}))
  s.sendall(b"hello")
  print(s.recv(5).decode())
  s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
  s.close()`;
    expect((await guest.output(python(script))).split("\n")).toEqual(["reset", "hello", "hello", "hello"]);
    const { peers } = ring().site;
    await until("the servers have noticed", () => peers.open.size === 0);
  });

  test("is one of 200 at once", async () => {
    const script = `
import asyncio
async def one(n):
  reader, writer = await asyncio.open_connection("peer.test", ${PEER_PORTS.echo})
  sent = b"%06d" % n * 9000
  writer.write(sent)
  writer.write_eof()
  return await reader.read(-1) == sent
async def main(): print(sum(await asyncio.gather(*[one(n) for n in range(200)])))
asyncio.run(main())`;
    expect(await guest.output(python(script))).toBe("200");
  });

  test("is made from a nested network namespace behind a veth, with names", async () => {
    const inner = [
      "ip link set lo up",
      "ip address add 172.31.0.2/24 dev inner",
      "ip link set inner up",
      "ip route add default via 172.31.0.1",
      `${PROBES.musl} connect www.test 80`,
      `${PROBES.glibc} connect ${ADDRESSES.peers} ${PEER_PORTS.echo}`,
      `${PROBES.glibc} connect peer.test ${PEER_PORTS.closed}`,
      `${PROBES.musl} lookup nope.test`,
    ];
    const out = await guest.output(`
set -e
[ -d /sys/module/veth ] || busybox insmod /usr/local/lib/veth.ko
ip link add outer type veth peer name inner
ip address add 172.31.0.1/24 dev outer
ip link set outer up
echo nameserver 9.9.9.9 > /etc/resolv.conf
unshare --net sleep 100 &
child=$!
until [ "$(readlink /proc/$child/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link set inner netns $child
nsenter --net=/proc/$child/ns/net sh -c '${inner.join("; ")}' || true
rm /etc/resolv.conf
kill $child`);
    expect(out.split("\n")).toEqual([
      expect.stringMatching(/^connected 198\.1[89]\.\d+\.\d+ 80$/),
      `connected ${ADDRESSES.peers} ${PEER_PORTS.echo}`,
      "ECONNREFUSED",
      "EAI_NONAME",
    ]);
  });

  test("of a user without rights", async () => {
    const script = `import os, socket; os.setuid(65534); socket.create_connection(("www.test", 80)); print("connected")`;
    expect(await guest.output(`python3 -c '${script}'`)).toBe("connected");
  });
});

describe("a connection that is not made", () => {
  test.each([
    ["a closed port", `peer.test ${PEER_PORTS.closed}`, "ECONNREFUSED"],
    ["a closed port of an address", `${ADDRESSES.peers} ${PEER_PORTS.closed}`, "ECONNREFUSED"],
    ["a closed port of an IPv6 address", `${ADDRESSES.web6} ${PEER_PORTS.closed}`, "ECONNREFUSED"],
    ["an unreachable host", "unreachable.test 80", "EHOSTUNREACH"],
    ["an address that no rule allows", "9.9.9.9 443", "EHOSTUNREACH"],
    ["an IPv6 address that no rule allows", "2600:8::1 443", "EACCES"],
  ])("to %s is refused at once", async (_, target, errno) => {
    expect(await guest.probe(`later ${target}`)).toBe(`EINPROGRESS ${errno}`);
    expect(await guest.probe(`connect ${target}`, "musl")).toBe(errno);
  });

  test("to a name that no rule allows: there is no such name", async () => {
    expect(await guest.probe("connect www.example 80")).toBe("EAI_NONAME");
  });

  test("to a host that is silent: the program's own time limit holds", async () => {
    const script = `
import socket, time
try: socket.create_connection(("silent.test", 80), timeout=0.5)
except TimeoutError: print("timed out")`;
    expect(await guest.output(python(script))).toBe("timed out");
  });

  test("with UDP: every port is closed", async () => {
    expect(await guest.probe("udp www.test 443")).toBe("sent ECONNREFUSED");
    expect(await guest.probe(`udp ${ADDRESSES.web} 443`, "musl")).toBe("sent ECONNREFUSED");
    expect(await guest.probe(`udp ${ADDRESSES.web6} 443`)).toBe("sent ECONNREFUSED");
  });

  test("without a network: it is unreachable, no name exists, and the host gets no request", async () => {
    const { contacts } = ring().site;
    await using alone = await Guest.start({ network: "none" });
    expect(await alone.probe(`later ${ADDRESSES.web} 80`)).toContain("ENETUNREACH");
    expect(await alone.probe(`connect ${ADDRESSES.web6} 80`, "musl")).toContain("ENETUNREACH");
    expect(await alone.probe("lookup www.test")).toMatch(/^EAI_/);
    expect(await alone.probe("lookup localhost", "musl")).toContain("127.0.0.1");
    const { result } = await alone.end();
    expect(result["network"]).toBeUndefined();
    expect(ring().site.contacts).toBe(contacts);
  });
});

describe("the network of an instance", () => {
  test("is that of all its processes; a checkpoint leaves connections open, and its image has nothing of them", async () => {
    const { appliance } = ring();
    await using other = await Guest.start();
    const script = `
import socket
s = socket.create_connection(("peer.test", ${PEER_PORTS.echo}))
for turn in range(2):
  s.sendall(b"hello")
  print(s.recv(5).decode(), flush=True)
  input()`;
    const talk = await other.begin(`python3 -c '${script}'`, { stdin_open: true });
    await until("it talks", async () => (await other.written(talk)).out === "hello\n");
    const answer = await appliance.post(`/instances/${other.id}/checkpoint`, {});
    const checkpoint = await appliance.finished(((await answer.json()) as { uuid: string }).uuid);
    expect(checkpoint.status).toBe("SUCCESS");
    await appliance.post(`/instances/${other.id}/processes/${talk}/stdin`, { content: "more\nend\n", close: true });
    expect(await other.ended(talk)).toMatchObject({ code: 0, out: "hello\nhello\n" });
    const { image } = checkpoint.result as unknown as { image: string };
    const diff = await appliance.fetch(`/images/${image}/diff?against=${ring().image}`);
    expect(((await diff.json()) as { items: object[] }).items).toEqual([]);
  });

  test("has one limit of connections, for those that the guest opens and those that are forwarded inward", async () => {
    const { appliance, site } = ring();
    await using other = await Guest.start();
    const web = await other.begin("cd /usr/local/share; exec python3 -m http.server --bind 127.0.0.1 8000");
    await other.output("until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.1; done");
    using forward = new CliProcess(appliance, ["forward", other.id, "0:8000"]);
    await forward.says(/127[^>]+-> 8000/);
    const port = /127\.0\.0\.1:(\d+) ->/.exec(forward.stdout)?.[1];
    const get = async () =>
      await fetch(`http://127.0.0.1:${port}/ca.crt`, { keepalive: false }).then((it) => it.text());
    expect(await get()).toBe(site.certified.authority);
    const holder = await other.begin(`exec ${PROBES.musl} hold peer.test ${PEER_PORTS.echo} ${CONNECTIONS_COUNT_MAX}`);
    await until("all are open", async () => (await other.written(holder)).out !== "");
    expect((await other.written(holder)).out).toBe(`${CONNECTIONS_COUNT_MAX}\n`);
    expect(await get().catch(() => "refused")).toBe("refused");
    // A further one waits until there is room.
    const waiting = await other.begin(`exec ${PROBES.glibc} connect peer.test ${PEER_PORTS.echo}`);
    await appliance.fetch(`/instances/${other.id}/processes/${holder}`, { method: "DELETE" });
    expect((await other.ended(waiting)).out).toContain("connected");
    await until("the servers have noticed", () => site.peers.open.size === 0);
    expect(await get()).toBe(site.certified.authority);
    await appliance.fetch(`/instances/${other.id}/processes/${web}`, { method: "DELETE" });
  });
});
