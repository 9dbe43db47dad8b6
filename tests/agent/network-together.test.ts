/**
 * Connections of programs through the agent and the host's client together, to outer ends that the test plays. Each seed is
 * a whole conversation: `COPPICE_TEST_SEED=n` begins with another one.
 */

import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import type { Socket } from "node:net";
import { InstanceNetwork } from "../../src/supervisor/network/instance-network.ts";
import { SYNC_ENTROPY_BYTES } from "../../src/vm/agent/protocol.ts";
import { dial } from "../support/agent/network-agent.ts";
import { dnsQuestion, heldSyn, ipv4, Kernel } from "../support/agent/packets.ts";
import { freePort } from "../support/free-port.ts";
import { nativeInstance } from "../support/guests/native-instance.ts";
import { type OuterConnection, StandInGate } from "../support/guests/stand-in-gate.ts";
import { DEAF_LISTENER } from "../support/instance-network.ts";
import { NETWORK_SETTINGS, rule } from "../support/network-scene.ts";
import { seededRandom, seedOfTests } from "../support/random.ts";
import { until } from "../support/waiting.ts";

const CONNECTIONS_COUNT = 120;
const TOGETHER_COUNT = 12;
const BYTES_MAX = 400_000;
const LOOPBACK = ipv4("127.0.0.1");
const TYPE_A = 1;
/** How a connection ends: both sides end it, or one resets it somewhere in the middle. */
const ENDINGS = ["both", "both", "guest resets", "server resets", "process lost"] as const;

type Random = ReturnType<typeof seededRandom>;

/** The bytes of one side, in pieces of random sizes. */
function* pieces(random: Random, bytes: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < bytes.byteLength; ) {
    const size = 1 + random.below(random.below(3) === 0 ? 100 : 90_000);
    yield bytes.subarray(at, at + size);
    at += size;
  }
}

async function sendAll(random: Random, socket: Socket, bytes: Uint8Array): Promise<void> {
  for (const piece of pieces(random, bytes)) {
    if (socket.destroyed) return;
    if (!socket.write(piece)) await new Promise<void>((go) => void socket.once("drain", go).once("close", go));
  }
}

/** A program of the guest and its server. Resolves when the connection is over on both sides. */
async function converse(random: Random, socket: Socket, outer: OuterConnection): Promise<void> {
  const ending = ENDINGS[random.below(ENDINGS.length)] ?? "both";
  const sent = random.bytes(random.below(BYTES_MAX));
  const answer = random.bytes(random.below(BYTES_MAX));
  const got: Buffer[] = [];
  socket.on("data", (chunk) => void got.push(Buffer.from(chunk)));
  const closed = new Promise<void>((over) => socket.once("close", () => over()));
  const cutAt = random.below(2);
  const writing = sendAll(random, socket, cutAt === 0 && ending !== "both" ? sent.subarray(0, 1000) : sent);
  for (const piece of pieces(random, answer)) outer.send(piece);
  if (ending === "both") {
    outer.finish();
    await writing;
    socket.end();
    await closed;
    expect(await outer.ended).toBe("ended");
    expect(Buffer.concat(got).equals(answer)).toBe(true);
    expect(Buffer.concat(outer.written).equals(sent)).toBe(true);
    return;
  }
  if (cutAt === 1) await until("some bytes pass", () => got.length > 0 || outer.written.length > 0 || socket.destroyed);
  if (ending === "guest resets") socket.resetAndDestroy();
  else outer.break(ending === "server resets" ? "reset" : "lost");
  await closed;
  // A program whose socket is closed with unread bytes may only seem to have ended its direction.
  if (ending === "guest resets") outer.finish();
  else expect(await outer.ended).not.toBe("ended");
  await outer.ended;
  expect(Buffer.concat(got).equals(Buffer.from(answer.subarray(0, Buffer.concat(got).byteLength)))).toBe(true);
}

test("programs and servers get all bytes of the other side, however connections end, and no connection is left", async () => {
  const random = seededRandom(seedOfTests());
  const gate = new StandInGate();
  gate.names = new Set(["a.example"]);
  let openCount = 0;
  await using network = new InstanceNetwork({
    gate,
    settings: { ...NETWORK_SETTINGS, allow: [rule("*", "*"), rule("127.0.0.0/8", "*")], opensPerSecond: 1000 },
    policy: { allow: [rule("*", "*"), rule("127.0.0.0/8", "*")], tls: "any", record: false },
    account: "a",
    clock: Date.now,
    listener: {
      ...DEAF_LISTENER,
      open: (change) => {
        openCount += change;
      },
    },
  });
  const { instance, directory, ...owned } = await nativeInstance();
  await using _instance = owned;
  const { agent } = instance;
  const sync = () =>
    agent.sync({ realtimeNs: BigInt(Date.now()) * 1_000_000n, entropy: new Uint8Array(SYNC_ENTROPY_BYTES) });
  await agent.network(network);
  using kernel = await Kernel.open({ directory, sync });
  expect((await kernel.answer(dnsQuestion("a.example", TYPE_A))).code).toBe(0);
  expect((await kernel.answer(dnsQuestion("gone.example", TYPE_A))).code).toBe(3);
  for (let done = 0; done < CONNECTIONS_COUNT; done += TOGETHER_COUNT) {
    const running: Promise<void>[] = [];
    for (let index = 0; index < TOGETHER_COUNT; index++) {
      const port = await freePort();
      kernel.hold(heldSyn({ from: LOOPBACK, to: LOOPBACK, fromPort: port, toPort: kernel.listener }));
      await kernel.packet();
      const outer = gate.connections.at(-1);
      if (outer === undefined) throw new Error("nothing was connected to");
      running.push(converse(random, await dial(kernel.listener, port), outer));
    }
    await Promise.all(running);
  }
  await until("all connections are over", () => openCount === 0);
  expect(gate.connections).toHaveLength(CONNECTIONS_COUNT);
  // The stream is whole: the agent and the client agree on which sessions are over.
  await agent.flush();
  expect(readdirSync(directory).filter((name) => name.startsWith("sanitizer"))).toEqual([]);
}, 120_000);
