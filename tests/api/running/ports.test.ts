/** Connections to ports of an instance; the guest is this host, so that its servers are those of the tests. */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, setDefaultTimeout } from "bun:test";
import { createHash } from "node:crypto";
import { createServer, type Server, type Socket } from "node:net";
import { Client } from "../../../src/client/client.ts";
import { PortConnection } from "../../../src/client/connections/port.ts";
import { CONNECTIONS_COUNT_MAX } from "../../../src/vm/agent/protocol.ts";
import { Api, errorOf } from "../../support/api/api.ts";
import { heldTest } from "../../support/api/program.ts";
import { type RunningFixture, runningInstance } from "../../support/api/running.ts";
import { refusedHandshake, socketClient, TestSocket } from "../../support/api/socket.ts";
import { freePort } from "../../support/free-port.ts";
import { pause, until } from "../../support/waiting.ts";

// The first test may have to build the agent.
setDefaultTimeout(150_000);

const CONTROLLED = "v1.port.coppice";
const WINDOW_BYTES = 262_144;

let api: Api;
let running: RunningFixture;
let servers: Server[] = [];
beforeAll(async () => {
  api = await Api.start();
  await api.addImage([[{ path: "f", type: "f", content: "x" }]], { tag: "base" });
});
afterAll(() => api[Symbol.asyncDispose]());
beforeEach(async () => {
  running = await runningInstance(api, "sleep 100");
});
afterEach(async () => {
  await running[Symbol.asyncDispose]();
  for (const server of servers) server.close();
  servers = [];
});

/** Starts a server whose connections `serve` handles; returns its path in the interface. */
async function listen(serve: (socket: Socket) => void): Promise<string> {
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    socket.on("error", () => undefined);
    serve(socket);
  });
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return portPath((server.address() as { port: number }).port);
}
const portPath = (port: number) => `${running.path}/ports/${port}`;
const sha256 = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");

describe("GET /instances/{uuid}/ports/{port}", () => {
  heldTest("carries bytes in both directions", async () => {
    const path = await listen((socket) => socket.on("data", (bytes) => socket.write(`got ${bytes}`)));
    using socket = await TestSocket.open(api, path);
    expect(socket.raw.protocol).toBe("");
    socket.send(Buffer.from("one"));
    await socket.until(() => socket.received.toString() === "got one");
    socket.send(Buffer.from("two"));
    await socket.until(() => socket.received.toString() === "got onegot two");
    expect(socket.texts).toEqual([]);
  });

  heldTest("the end of the guest closes a plain socket, after everything that was sent", async () => {
    const content = Buffer.alloc(3_000_000, "0123456789");
    const path = await listen((socket) => socket.end(content));
    using socket = await TestSocket.open(api, path);
    expect(await socket.closed).toEqual({ code: 1000, reason: "" });
    expect(sha256(socket.received)).toBe(sha256(content));
  });

  heldTest("what a client sent before it left reaches the guest, which sees an end and no reset", async () => {
    const seen = Promise.withResolvers<string>();
    const path = await listen((socket) => {
      let text = "";
      socket.on("data", (bytes) => {
        text += bytes;
      });
      socket.on("end", () => socket.end("late"));
      socket.on("close", (failed) => seen.resolve(`${text} ${failed}`));
    });
    using socket = await TestSocket.open(api, path);
    socket.send(Buffer.from("last words"));
    socket.close(1000);
    expect(await seen.promise).toBe("last words false");
  });

  heldTest(
    "a client that is gone resets the guest's connection; a reset of the guest closes the socket with 4000",
    async () => {
      const connection = Promise.withResolvers<Socket>();
      const path = await listen(connection.resolve);
      const socket = await TestSocket.open(api, path);
      const guest = await connection.promise;
      const ended = new Promise<string>((resolve) => {
        guest.on("error", (error) => resolve((error as NodeJS.ErrnoException).code ?? ""));
        guest.on("end", () => resolve("end"));
      });
      guest.resume();
      socket.raw.terminate();
      expect(await ended).toBe("ECONNRESET");

      const resetting = await listen((other) => other.once("data", () => other.resetAndDestroy()));
      using second = await TestSocket.open(api, resetting);
      second.send(Buffer.from("now"));
      expect(await second.closed).toMatchObject({ code: 4000 });
    },
  );

  heldTest("a port without a listener is a conflict, and an invalid one an error", async () => {
    expect(await refusedHandshake(api, portPath(await freePort()))).toEqual({ status: 409, error: "conflict" });
    for (const port of ["0", "65536", "080", "http", "-1"]) {
      expect(await refusedHandshake(api, `${running.path}/ports/${port}`)).toEqual({
        status: 400,
        error: "validation_error",
      });
    }
  });

  heldTest("the caller is authenticated and authorised before anything is connected", async () => {
    let connected = 0;
    const path = await listen(() => void connected++);
    expect(await refusedHandshake(api, path, null)).toEqual({ status: 401, error: "unauthorized" });
    const reader = await api.issue("alice", ["instances:read", "instances:spawn"]);
    expect(await refusedHandshake(api, path, reader)).toEqual({ status: 403, error: "forbidden" });
    expect(await refusedHandshake(api, path, api.foreignToken)).toEqual({ status: 404, error: "not_found" });
    expect(connected).toBe(0);
    errorOf(await api.call("GET", path), "validation_error");
    running.command.signal(9);
    await running.command.exit;
    expect(await refusedHandshake(api, path)).toEqual({ status: 409, error: "conflict" });
  });

  heldTest("the end of the instance closes the socket", async () => {
    const path = await listen(() => undefined);
    using socket = await TestSocket.open(api, path);
    await running[Symbol.asyncDispose]();
    expect(await socket.closed).toMatchObject({ code: 4000 });
    running = await runningInstance(api, "sleep 100");
  });

  heldTest("there are as many connections as the guest has room for, and no more", async () => {
    const path = await listen((socket) => void socket.pipe(socket));
    const sockets = await Promise.all(Array.from({ length: CONNECTIONS_COUNT_MAX }, () => TestSocket.open(api, path)));
    using _sockets = { [Symbol.dispose]: () => sockets.map((socket) => socket[Symbol.dispose]()) };
    expect(await refusedHandshake(api, path)).toEqual({ status: 429, error: "too_many_requests" });
    for (const [index, socket] of sockets.entries()) socket.send(Buffer.from(`${index}`));
    await Promise.all(sockets.map((socket, index) => socket.until(() => socket.received.toString() === `${index}`)));
    for (const socket of sockets) socket.close();
    await Promise.all(sockets.map(({ closed }) => closed));
    // Their places in the guest are free again.
    const again = await Promise.all(Array.from({ length: CONNECTIONS_COUNT_MAX }, () => openWhenFree(path)));
    for (const socket of again) socket[Symbol.dispose]();
  });

  /** A place is free only when the guest has reported it, a moment after the socket was closed. */
  async function openWhenFree(path: string): Promise<TestSocket> {
    for (;;) {
      const socket = await TestSocket.open(api, path).catch(() => null);
      if (socket !== null) return socket;
    }
  }
});

describe("with the subprotocol", () => {
  const open = (path: string) => TestSocket.open(api, path, { protocols: ["other", CONTROLLED] });

  heldTest("each side ends separately", async () => {
    const path = await listen((socket) => {
      let text = "";
      socket.on("data", (bytes) => {
        text += bytes;
      });
      socket.on("end", () => socket.end(`all of ${text}`));
    });
    using socket = await open(path);
    expect(socket.raw.protocol).toBe(CONTROLLED);
    await socket.until(() => socket.texts.length > 0);
    expect(JSON.parse(socket.texts[0] ?? "")).toEqual({ window: WINDOW_BYTES });
    socket.send(Buffer.from("it"));
    await socket.until(() => socket.texts.length > 1);
    expect(JSON.parse(socket.texts[1] ?? "")).toEqual({ taken: 2 });
    socket.send(JSON.stringify({ end: true }));
    expect(await socket.closed).toMatchObject({ code: 1000 });
    expect(socket.received.toString()).toBe("all of it");
    expect(JSON.parse(socket.texts.at(-1) ?? "")).toEqual({ end: true });
  });

  heldTest("a client that keeps to the window sends any amount to a slow reader, whole", async () => {
    const content = Buffer.from(crypto.getRandomValues(new Uint8Array(65_536)));
    const total = 40_000_000;
    const hash = createHash("sha256");
    const path = await listen((socket) => {
      socket.on("data", (bytes) => {
        hash.update(bytes);
        socket.pause();
        setImmediate(() => socket.resume());
      });
      socket.on("end", () => socket.end(hash.digest("hex")));
    });
    using socket = await open(path);
    const takenBytes = () =>
      socket.texts.reduce((most, text) => Math.max(most, (JSON.parse(text) as { taken?: number }).taken ?? 0), 0);
    const expected = createHash("sha256");
    for (let sent = 0; sent < total; ) {
      const part = content.subarray(0, Math.min(content.byteLength, total - sent));
      await socket.until(() => sent + part.byteLength - takenBytes() <= WINDOW_BYTES);
      socket.texts.splice(0, socket.texts.length - 1);
      socket.send(part);
      expected.update(part);
      sent += part.byteLength;
    }
    socket.send(JSON.stringify({ end: true }));
    await socket.closed;
    expect(socket.received.toString()).toBe(expected.digest("hex"));
  });

  heldTest("a client that does not is closed with 1009, and so is one with a message that is too long", async () => {
    const path = await listen((socket) => void socket.pause());
    using flood = await open(path);
    for (let sent = 0; sent < 64; sent++) flood.send(Buffer.alloc(200_000));
    expect(await flood.closed).toMatchObject({ code: 1009 });
    using long = await open(path);
    long.send(Buffer.alloc(WINDOW_BYTES + 1));
    expect(await long.closed).toMatchObject({ code: 1009 });
    using wrong = await open(path);
    wrong.send("what");
    expect(await wrong.closed).toMatchObject({ code: 1003 });
  });

  heldTest("a client that does not read holds the guest's program back, and costs no more than a window", async () => {
    const written = { bytes: 0, waits: false };
    const path = await listen((socket) => {
      const piece = Buffer.alloc(65_536, 7);
      const more = () => {
        while (written.bytes < 200_000_000) {
          written.bytes += piece.byteLength;
          written.waits = !socket.write(piece);
          if (written.waits) return;
        }
        socket.end();
      };
      socket.on("drain", more);
      more();
    });
    // A client without a reader: the kernel's buffers of the connection fill.
    const { hostname, port } = new URL(api.url);
    const stopped = await Bun.connect({
      hostname,
      port: Number(port),
      socket: { data: (socket) => void socket.pause() },
    });
    using _stopped = { [Symbol.dispose]: () => stopped.terminate() };
    const lines = [
      ...[`GET ${path} HTTP/1.1`, `Host: ${hostname}:${port}`, "Connection: Upgrade", "Upgrade: websocket"],
      ...["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="],
      `Authorization: Bearer ${api.token}`,
    ];
    stopped.write(`${lines.join("\r\n")}\r\n\r\n`);
    let before = -1;
    await until("the buffers are full", async () => {
      const isFull = written.waits && before === written.bytes;
      before = written.bytes;
      if (!isFull) await pause("more may be written", 300);
      return isFull;
    });
    expect(written.bytes).toBeLessThan(40_000_000);
    stopped.resume();
  });
});

describe("with the second version of the subprotocol", () => {
  const open = (path: string) => TestSocket.open(api, path, { protocols: ["v1.port.coppice", "v2.port.coppice"] });
  const acknowledgement = (bytes: number) => JSON.stringify({ taken: bytes });

  heldTest("the guest's bytes stop at the window, and continue as the client acknowledges them", async () => {
    const content = Buffer.alloc(3 * WINDOW_BYTES, "0123456789");
    const path = await listen((socket) => {
      socket.once("data", () => socket.end(content));
      socket.on("data", () => undefined);
    });
    using socket = await open(path);
    expect(socket.raw.protocol).toBe("v2.port.coppice");
    socket.send(Buffer.from("go"));
    await socket.until(() => socket.received.byteLength >= WINDOW_BYTES);
    // This answer arrives after everything that was sent before.
    socket.send(Buffer.from("more"));
    await socket.until(() => socket.texts.includes(acknowledgement(6)));
    expect(socket.received.byteLength).toBe(WINDOW_BYTES);
    socket.send(acknowledgement(1000));
    await socket.until(() => socket.received.byteLength >= WINDOW_BYTES + 1000);
    expect(socket.received.byteLength).toBe(WINDOW_BYTES + 1000);
    socket.send(acknowledgement(WINDOW_BYTES + 1000));
    await socket.until(() => socket.received.byteLength >= 2 * WINDOW_BYTES + 1000);
    socket.send(acknowledgement(2 * WINDOW_BYTES));
    socket.send(JSON.stringify({ end: true }));
    expect(await socket.closed).toMatchObject({ code: 1000 });
    expect(sha256(socket.received)).toBe(sha256(content));
  });

  heldTest.each(["-1", "1.5", "3", '"2"', "null"])(
    "a client that acknowledges %s of two bytes is closed with 1003",
    async (count) => {
      const path = await listen((socket) => void socket.write("ab"));
      using socket = await open(path);
      await socket.until(() => socket.received.byteLength === 2);
      socket.send(`{"taken": ${count}}`);
      expect(await socket.closed).toMatchObject({ code: 1003 });
    },
  );

  heldTest("a client that writes 64 MiB before it reads gets what the guest's program wrote meanwhile", async () => {
    const [sentBytes, answerBytes] = [64 * 1_048_576, 8 * 1_048_576];
    // It reads everything, and does not wait until its own bytes are read, like any program with two threads.
    const path = await listen((socket) => {
      let bytes = 0;
      socket.write(Buffer.alloc(answerBytes, 7));
      socket.on("data", (chunk) => {
        bytes += chunk.length;
      });
      socket.on("end", () => socket.end(`got ${bytes}`));
    });
    const client = new Client(socketClient(api));
    using connection = await PortConnection.open(client, running.path.split("/").at(-1) ?? "", portOf(path));
    const piece = new Uint8Array(1_048_576);
    for (let sent = 0; sent < sentBytes; sent += piece.byteLength) expect(await connection.write(piece)).toBe(true);
    connection.end();
    let answer = Buffer.alloc(0);
    for await (const chunk of connection.chunks()) answer = Buffer.concat([answer, chunk]);
    expect(answer.byteLength).toBe(answerBytes + `got ${sentBytes}`.length);
    expect(answer.subarray(answerBytes).toString()).toBe(`got ${sentBytes}`);
  });
});

const portOf = (path: string): number => Number(path.split("/").at(-1));
