import { afterEach, describe, expect, test } from "bun:test";
import { closeSync, ftruncateSync, openSync, readSync, writeSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Socket } from "node:net";
import { join } from "node:path";
import { type ChildProcess, start } from "../../../src/system/exec.ts";
import { LibcError } from "../../../src/system/libc.ts";
import { connectUnix, sendWithDescriptor } from "../../../src/system/unix-sockets.ts";
import { ChannelClosedError, SocketChannel } from "../../../src/vm/agent/channel.ts";
import { createMemfd, SEALS_ALL, sealMemfd } from "../../../src/vm/descriptors.ts";
import { failureOf } from "../../support/failures.ts";
import { sealsOf } from "../../support/guests/seals.ts";
import { seededRandom } from "../../support/random.ts";
import { pause, turns } from "../../support/waiting.ts";

const children: ChildProcess[] = [];
afterEach(async () => {
  for (const child of children.splice(0)) {
    child.kill("SIGKILL");
    await child.exited;
  }
});

/** A shell script with one end of a socket pair as descriptor 3; the other end as a channel. */
async function peer(script: string): Promise<SocketChannel> {
  const child = start({ argv: ["/bin/sh", "-c", script], extraFds: ["socket"], stderr: "ignore" });
  children.push(child);
  return await SocketChannel.open(child.fds[0] ?? -1);
}

/** Everything until the end of the stream. */
function collect(channel: SocketChannel): { bytes: () => Buffer; ended: Promise<void>; ends: () => number } {
  const chunks: Uint8Array[] = [];
  const ended = Promise.withResolvers<void>();
  let ends = 0;
  channel.onData((chunk) => {
    if (chunk !== null) chunks.push(chunk);
    else {
      ends += 1;
      ended.resolve();
    }
  });
  return { bytes: () => Buffer.concat(chunks), ended: ended.promise, ends: () => ends };
}

describe("socket channel", () => {
  test("carries more than the socket buffers, in order", async () => {
    await using channel = await peer("head -c 6000000 <&3 >&3");
    const sent = Buffer.from(seededRandom(1).bytes(6_000_000));
    const read = collect(channel);
    const writes = Array.from({ length: 6 }, (_, part) => channel.write(sent.subarray(part * 1e6, (part + 1) * 1e6)));
    await Promise.all(writes);
    await read.ended;
    expect(Bun.hash(read.bytes())).toBe(Bun.hash(sent));
    expect(read.ends()).toBe(1);
  });

  test("buffers data until there is a reader, and stops the sender when there is much", async () => {
    await using channel = await peer("head -c 30000000 /dev/zero >&3; echo end >&3");
    await pause("the socket is full", 150);
    const before = process.memoryUsage().rss;
    await pause("more would come", 150);
    expect(process.memoryUsage().rss - before).toBeLessThan(15_000_000);
    const read = collect(channel);
    await read.ended;
    expect(read.bytes().byteLength).toBe(30_000_004);
    expect(read.bytes().subarray(-4).toString()).toBe("end\n");
  });

  test("stops a sender of single bytes before they take much memory", async () => {
    const directory = await mkdtemp("/tmp/coppice-channel-");
    await using stack = new AsyncDisposableStack();
    stack.defer(() => rm(directory, { recursive: true }));
    const connected = Promise.withResolvers<Socket>();
    const server = createServer(connected.resolve).listen(join(directory, "socket"));
    stack.defer(() => void server.close());
    const channel = stack.use(await SocketChannel.open(connectUnix(join(directory, "socket"))));
    const sender = await connected.promise;
    for (let sent = 0; sent < 3000; sent++) {
      sender.write("x");
      await turns(1);
    }
    sender.end();
    let [count, bytes] = [0, 0];
    const ended = Promise.withResolvers<void>();
    channel.onData((chunk) => {
      count += 1;
      bytes += chunk?.byteLength ?? 0;
      if (chunk === null) ended.resolve();
    });
    // Those that waited are delivered at once.
    expect(count).toBeLessThan(1100);
    await ended.promise;
    expect(bytes).toBe(3000);
  });

  test("delivers nothing while it is paused, and everything afterwards, the end last", async () => {
    await using channel = await peer("echo one >&3; sleep 0.1; echo two >&3");
    const read = collect(channel);
    channel.pause();
    await pause("both lines are sent, and the end", 300);
    expect(read.bytes().byteLength).toBe(0);
    expect(read.ends()).toBe(0);
    channel.resume();
    await read.ended;
    expect(read.bytes().toString()).toBe("one\ntwo\n");
  });

  test("delivers the end to a late reader", async () => {
    await using channel = await peer("echo x >&3");
    await pause("the end comes", 200);
    const read = collect(channel);
    await read.ended;
    expect(read.bytes().toString()).toBe("x\n");
  });

  test("fails waiting writes when it closes, and later ones", async () => {
    await using channel = await peer("sleep 10");
    const read = collect(channel);
    const stuck = channel.write(new Uint8Array(10_000_000));
    channel.close();
    expect(await failureOf(stuck)).toBeInstanceOf(ChannelClosedError);
    expect(await failureOf(channel.write(new Uint8Array(1)))).toBeInstanceOf(ChannelClosedError);
    await read.ended;
    expect(read.ends()).toBe(1);
  });
});

describe("descriptors", () => {
  test("a sealed memfd cannot be changed by any of its descriptors", async () => {
    const fd = createMemfd("test", 4096);
    writeSync(fd, "before", 0);
    const other = openSync(`/proc/self/fd/${fd}`, "r+");
    await sealMemfd(fd);
    expect(sealsOf(fd)).toBe(SEALS_ALL);
    for (const each of [fd, other]) {
      expect(() => writeSync(each, "after", 0)).toThrow("EPERM");
      expect(() => ftruncateSync(each, 8192)).toThrow("EPERM");
      expect(() => ftruncateSync(each, 0)).toThrow("EPERM");
    }
    const content = Buffer.alloc(6);
    readSync(other, content, 0, 6, 0);
    expect(content.toString()).toBe("before");
    closeSync(fd);
    closeSync(other);
  });

  test("only a memfd can be sealed", async () => {
    const fd = openSync("/dev/null", "r+");
    expect(await failureOf(sealMemfd(fd))).toBeInstanceOf(LibcError);
    closeSync(fd);
  });

  test("sending a descriptor fails without a socket", () => {
    const fd = openSync("/dev/null", "r+");
    expect(() => sendWithDescriptor(fd, Buffer.from("x"), fd)).toThrow("sendmsg: ENOTSOCK");
    closeSync(fd);
  });
});
