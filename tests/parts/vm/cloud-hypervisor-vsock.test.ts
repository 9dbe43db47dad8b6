import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connectUnix, listenUnix, SOCKET_PATH_BYTES_MAX } from "../../../src/system/unix-sockets.ts";
import { ChannelClosedError } from "../../../src/vm/agent/channel.ts";
import { VsockChannel } from "../../../src/vm/cloud-hypervisor/vsock.ts";
import { throwing } from "../../support/failures.ts";
import { pause, until } from "../../support/waiting.ts";

let directory: string;
let path: string;
const servers: Server[] = [];
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "vsock-"));
  path = join(directory, "vsock.sock");
});
afterEach(() => {
  for (const server of servers.splice(0)) server.close();
  rmSync(directory, { recursive: true, force: true });
});

/** The VMM's side; `serve` gets the number of the connection, and the request. */
function listen(serve: (socket: Socket, attempt: number, asked: string) => void): Promise<void> {
  let attempts = 0;
  const server = createServer((socket) => {
    const attempt = attempts++;
    socket.on("error", () => socket.destroy());
    socket.once("data", (asked) => serve(socket, attempt, asked.toString()));
  });
  servers.push(server);
  return new Promise((done) => void server.listen(path, done));
}

async function received(channel: VsockChannel, count: number): Promise<string> {
  let text = "";
  const enough = Promise.withResolvers<void>();
  channel.onData((chunk) => {
    text += chunk === null ? "<end>" : Buffer.from(chunk).toString();
    if (text.length >= count) enough.resolve();
  });
  await enough.promise;
  return text;
}

describe("a vsock channel", () => {
  test("requests the port, and removes only the answer from the stream, wherever it is cut", async () => {
    const stream = Buffer.from("OK 1073741824\nhello\nOK 5\n");
    for (let cut = 1; cut < stream.length; cut++) {
      const asked: string[] = [];
      path = join(directory, `${cut}.sock`);
      await listen((socket, _, text) => {
        asked.push(text);
        socket.write(stream.subarray(0, cut));
        void pause("the rest comes by itself", 1).then(() => socket.write(stream.subarray(cut)));
      });
      await using channel = VsockChannel.open(path, 1024);
      expect(await received(channel, 11)).toBe("hello\nOK 5\n");
      expect(asked).toEqual(["CONNECT 1024\n"]);
    }
  });

  test("tries again until the agent listens, accepts, and sends something", async () => {
    await using channel = VsockChannel.open(path, 1024);
    await pause("there is no listener", 20);
    const ways: ((socket: Socket) => void)[] = [
      (socket) => socket.destroy(),
      (socket) => socket.end("NO 1\n"),
      (socket) => socket.end("x".repeat(100)),
      // Accepted by a guest whose agent has ended.
      (socket) => socket.end("OK 1\n"),
      (socket) => void socket.write("OK 1\nhi"),
    ];
    await listen((socket, attempt) => ways[attempt]?.(socket));
    expect(await received(channel, 2)).toBe("hi");
  });

  test("sends data that was written before the connection, in order", async () => {
    await using channel = VsockChannel.open(path, 1024);
    const written = [channel.write(Buffer.from("one,")), channel.write(Buffer.from("two"))];
    const got = Promise.withResolvers<string>();
    await listen((socket) => {
      let text = "";
      socket.on("data", (chunk) => {
        text += chunk.toString();
        if (text.length === 7) got.resolve(text);
      });
      socket.write("OK 1\n!");
    });
    expect(await got.promise).toBe("one,two");
    await Promise.all(written);
  });

  test("buffers data while its reader pauses", async () => {
    const isSeen = Promise.withResolvers<void>();
    await listen((socket) => {
      socket.write("OK 1\nfirst");
      void isSeen.promise.then(() => socket.write("second"));
    });
    await using channel = VsockChannel.open(path, 1024);
    const seen: string[] = [];
    channel.onData((chunk) => {
      seen.push(chunk === null ? "<end>" : Buffer.from(chunk).toString());
      channel.pause();
      isSeen.resolve();
    });
    await isSeen.promise;
    await pause("the second is sent", 40);
    expect(seen).toEqual(["first"]);
    channel.resume();
    await until("it is given", () => seen.length === 2);
    expect(seen).toEqual(["first", "second"]);
  });

  test("does not connect again once the agent has sent something", async () => {
    let connections = 0;
    await listen((socket) => {
      connections++;
      socket.end("OK 1\nbye");
    });
    await using channel = VsockChannel.open(path, 1024);
    expect(await received(channel, 8)).toBe("bye<end>");
    await pause("it would connect again", 30);
    expect(connections).toBe(1);
    expect(await throwing(channel.write(Buffer.from("x")))).toThrow(ChannelClosedError);
  });

  test("that is closed before its connection ends for reader and writers, and stops trying", async () => {
    const channel = VsockChannel.open(path, 1024);
    const written = channel.write(Buffer.from("x"));
    const end = received(channel, 5);
    channel.close();
    expect(await end).toBe("<end>");
    expect(await throwing(written)).toThrow(ChannelClosedError);
    let connections = 0;
    await listen(() => connections++);
    await pause("it would connect again", 30);
    expect(connections).toBe(0);
  });
});

describe("a socket's path", () => {
  test("may have the kernel's maximum length, and no more", () => {
    expect(() => listenUnix(`/${"x".repeat(SOCKET_PATH_BYTES_MAX)}`)).toThrow("ENAMETOOLONG");
    expect(() => connectUnix(join(directory, "missing"))).toThrow("connect: ENOENT");
    expect(() => listenUnix(join(directory, "no/directory"))).toThrow("bind: ENOENT");
  });
});
