import { expect, setDefaultTimeout, test } from "bun:test";
import type { Socket } from "node:net";
import { type GateConnection, type GateEnd, GateError } from "../../../src/network/gate.ts";
import { withinTime } from "../../../src/system/waiting.ts";
import { guestRequest, type TestGate, testGate } from "../../support/network/gate.ts";
import { peer } from "../../support/network/peers.ts";
import { nameServer } from "../../support/network/site/name-server.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(60_000);

const CHUNK = Buffer.alloc(65_536, "x");
/** A writer that waits this long is held up by the far end, not by a busy machine. */
const STALL_MS = 2000;
const never = new AbortController().signal;

async function connect({ gate }: TestGate, port: number, idleMs = 60_000): Promise<GateConnection> {
  const destination = { kind: "address", host: "127.0.0.1", port } as const;
  return await gate.connect(guestRequest(destination, { except: ["127.0.0.0/8"], idleMs }), never);
}

/** How many bytes a connection takes when its far end reads none. */
async function capacity(gate: TestGate, port: number): Promise<number> {
  const connection = await connect(gate, port);
  for (let written = 0; ; written += CHUNK.byteLength) {
    const isTaken = connection.write(CHUNK).then(() => true);
    if (await withinTime(isTaken, STALL_MS, () => false)) continue;
    connection.reset();
    return written;
  }
}

test("a connection whose sides have ended lasts until its far end has taken all", async () => {
  const counts = new Map<Socket, number>();
  await using server = await peer((socket) => {
    counts.set(socket, 0);
    socket.on("data", (chunk: Buffer) => counts.set(socket, (counts.get(socket) ?? 0) + chunk.byteLength));
    socket.pause().end();
  });
  await using gate = await testGate();
  const full = await capacity(gate, server.port);
  // The kernel takes the most of it; the process holds at most a window. A slow host may have measured too little.
  const sent: number[] = [];
  const ends: GateEnd[] = [];
  for (let bytes = full - 3 * CHUNK.byteLength; !ends.includes("idle"); bytes += CHUNK.byteLength) {
    const connection = await connect(gate, server.port, 1000);
    for (let left = bytes; left > 0; left -= CHUNK.byteLength) void connection.write(CHUNK);
    connection.end();
    for await (const _chunk of connection.chunks());
    ends.push(await connection.ended);
    sent.push(bytes);
  }
  await gate[Symbol.asyncDispose]();
  for (const [index, socket] of server.sockets.slice(1).entries()) {
    if (ends[index] !== "ended") continue;
    socket.resume();
    await until("all has arrived", () => counts.get(socket) === sent[index]);
  }
});

test("an account whose destinations never answer leaves connections to others, and to imports", async () => {
  await using names = await nameServer((name) =>
    name === "www.example.com" ? { addresses: ["127.0.0.1"] } : "silence",
  );
  await using server = await peer();
  await using outside = await testGate({ resolvers: [names.address] });
  const { gate } = outside;
  using greedy = new DisposableStack();
  const end = new AbortController();
  greedy.defer(() => end.abort());
  const refused: unknown[] = [];
  for (let count = 0; count < 1024; count++) {
    const destination = { kind: "name", host: `a${count}.example`, port: server.port } as const;
    const request = guestRequest(destination, { account: "greedy" });
    gate.connect(request, end.signal).catch((error: unknown) => end.signal.aborted || refused.push(error));
  }
  await until("it gets no more", () => refused.length > 500);
  expect(refused.every((error) => error instanceof GateError && error.verdict === "limited")).toBeTrue();
  for (const account of ["other", null]) {
    const destination = { kind: "name", host: "www.example.com", port: server.port } as const;
    const connection = await gate.connect(guestRequest(destination, { account, anyAddress: true }), never);
    connection.reset();
  }
});
