/** Requests on their way from the listener to the application, over the socket between them. */

import { afterAll, beforeAll, describe, expect } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connectLocally } from "../../../src/api/e2b/local-connection.ts";
import { serveLocally } from "../../../src/api/operator/local-server.ts";
import type { Visit } from "../../../src/ingress/upstream.ts";
import { heldTest } from "../../support/api/program.ts";
import { IngressScene, Peer } from "../../support/ingress/scene.ts";
import { pause, until } from "../../support/waiting.ts";

const MEBIBYTE = 1_048_576;

let directory: string;
let scene: IngressScene;
let server: AsyncDisposable;
/** bytes that the server has read of bodies, and written of answers */
let [readBytes, writtenBytes] = [0, 0];
/** answers whose clients left */
let leftCount = 0;
/** requests that are under way until their clients leave */
let waitingCount = 0;
/** lets the server end its quiet answer */
const spoken = Promise.withResolvers<void>();
/** lets the server read a body */
const release = Promise.withResolvers<void>();

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-e2b-"));
  const path = join(directory, "e2b.sock");
  server = await serveLocally(path, { fetch: serve, error: ({ message }) => new Response(message, { status: 500 }) });
  const decide = async ({ head }: Visit) => ({
    head,
    cookies: new Set<string>(),
    connect: async () => {
      const connection = await connectLocally(path);
      return { connection, [Symbol.dispose]: () => connection.reset() };
    },
  });
  scene = new IngressScene({ upstream: { decide } });
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
  await server[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

async function serve(request: Request): Promise<Response> {
  if (request.url.endsWith("/waiting")) {
    waitingCount++;
    await new Promise<void>((resolve) => request.signal.addEventListener("abort", () => resolve(), { once: true }));
    waitingCount--;
  }
  if (request.method === "PUT") return new Response(`got ${await request.text()}`);
  if (request.url.endsWith("/quiet")) return new Response(quietStream());
  if (request.method === "POST") {
    await release.promise;
    for await (const chunk of request.body ?? []) readBytes += chunk.byteLength;
    return new Response(`${readBytes}`);
  }
  const chunk = new Uint8Array(65_536).fill(0x61);
  const stream = new ReadableStream<Uint8Array>({
    pull(controller) {
      controller.enqueue(chunk);
      writtenBytes += chunk.byteLength;
    },
    cancel() {
      leftCount++;
    },
  });
  return new Response(stream);
}

/** An answer that says nothing until the body of another request has arrived. */
function quietStream(): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async start(controller) {
      controller.enqueue(Buffer.from("first "));
      await spoken.promise;
      controller.enqueue(Buffer.from("last"));
      controller.close();
    },
  });
}

/** Waits until a number of bytes grows no more. */
async function still(bytes: () => number): Promise<void> {
  let before = -1;
  await until("no more bytes move", async () => {
    const now = bytes();
    const isStill = now > 0 && now === before;
    before = now;
    if (!isStill) await pause("buffers fill", 100);
    return isStill;
  });
}

describe("an answer without an end", () => {
  heldTest("is made at the pace of its reader, and ends when the reader leaves", async () => {
    const peer = await Peer.connect(scene.listener.port);
    peer.socket.pause();
    peer.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    await still(() => writtenBytes);
    expect(writtenBytes).toBeLessThan(32 * MEBIBYTE);
    peer.socket.destroy();
    await until("the server notices", () => leftCount === 1);
  });
});

describe("a client that leaves", () => {
  heldTest("ends the request that it waited for", async () => {
    const peer = await Peer.connect(scene.listener.port);
    peer.send("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n");
    await until("the request is under way", () => waitingCount === 1);
    peer.socket.destroy();
    await until("the request is aborted", () => waitingCount === 0);
  });
});

describe("a body", () => {
  heldTest("may wait for a 100", async () => {
    const peer = await Peer.connect(scene.listener.port);
    peer.send("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    await peer.until("HTTP/1.1 100 Continue\r\n");
    peer.send("body");
    await peer.until("got body");
    peer.socket.destroy();
  });

  heldTest("is held back while the application does not read it", async () => {
    const peer = await Peer.connect(scene.listener.port);
    const sizeBytes = 64 * MEBIBYTE;
    peer.send(`POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${sizeBytes}\r\n\r\n`);
    let sentBytes = 0;
    const piece = Buffer.alloc(MEBIBYTE, "x");
    const sent = (async () => {
      for (; sentBytes < sizeBytes; sentBytes += piece.byteLength) {
        if (!peer.socket.write(piece)) await new Promise((resolve) => peer.socket.once("drain", resolve));
      }
    })();
    await still(() => sentBytes);
    expect(sentBytes).toBeLessThan(32 * MEBIBYTE);
    release.resolve();
    await sent;
    await peer.until(String(sizeBytes));
    peer.socket.destroy();
  });
});

heldTest("a request that carries nothing for a long time is not ended", async () => {
  release.resolve();
  const [reader, writer] = [await Peer.connect(scene.listener.port), await Peer.connect(scene.listener.port)];
  reader.send("GET /quiet HTTP/1.1\r\nHost: a\r\n\r\n");
  writer.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nab");
  await reader.until("first ");
  await pause("Bun would end idle connections of a server without a setting", 13_000);
  writer.send("cd");
  await writer.until("HTTP/1.1 200 OK");
  spoken.resolve();
  await reader.until("last");
  for (const { socket } of [reader, writer]) socket.destroy();
});
