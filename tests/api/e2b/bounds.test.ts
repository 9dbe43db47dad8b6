/** Limits of callers of agents: streams, messages, and long answers that they do not read. */
import { afterAll, beforeAll, describe, expect } from "bun:test";
import { mkdirSync, writeFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { LimitName } from "../../../src/domain/account/limits.ts";
import { heldTest } from "../../support/api/program.ts";
import { type E2bSandbox, E2bScene } from "../../support/e2b/scene.ts";
import { until } from "../../support/waiting.ts";

const MIB = 1_048_576;
const STREAMS_MAX = 6;
const accounts = new Accounts({ callStreams: { max: STREAMS_MAX } });
const used = (name: LimitName) => accounts.used("alice", name);
let scene: E2bScene;
let sandbox: E2bSandbox;
beforeAll(async () => {
  scene = await E2bScene.start({}, { accounts });
  sandbox = await scene.open();
}, 120_000);
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
});

/** A client that sends a request as it likes, and reads the answer when it likes. */
class Client implements Disposable {
  readonly #socket: Socket;
  #text = "";

  constructor(path: string, type: string) {
    this.#socket = connect(scene.port, "127.0.0.1").on("error", () => undefined);
    this.#socket.on("data", (bytes) => {
      this.#text += bytes.toString("latin1");
    });
    const fields = { ...sandbox.headers(), Host: "a", "content-type": type, "transfer-encoding": "chunked" };
    const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`);
    this.#socket.write(`POST ${path} HTTP/1.1\r\n${lines.join("")}\r\n`);
  }

  send(bytes: Uint8Array): void {
    this.#socket.write(`${bytes.byteLength.toString(16)}\r\n`);
    this.#socket.write(bytes);
    this.#socket.write("\r\n");
  }

  end(): void {
    this.#socket.write("0\r\n\r\n");
  }

  pause(): void {
    this.#socket.pause();
  }

  async has(text: string): Promise<void> {
    await until(`an answer with ${text}`, () => this.#text.includes(text));
  }

  [Symbol.dispose](): void {
    this.#socket.destroy();
  }
}

const streamOf = (method: string) => new Client(`/process.Process/${method}`, "application/connect+json");

function frameOf(text: string): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(Buffer.byteLength(text), 1);
  return Buffer.concat([head, Buffer.from(text)]);
}

describe("the streams of a caller", () => {
  heldTest("are counted until they end, and refused beyond the limit", async () => {
    {
      using stack = new DisposableStack();
      for (let count = 0; count < STREAMS_MAX; count++) stack.use(streamOf(count % 2 === 0 ? "StreamInput" : "Start"));
      await until("they are open", () => used("callStreams") === STREAMS_MAX);
      for (const method of ["StreamInput", "Start"]) {
        using another = streamOf(method);
        another.end();
        await another.has("resource_exhausted");
      }
    }
    await until("they are given back", () => used("callStreams") === 0);
  });
});

describe("the messages of a stream", () => {
  heldTest("are counted from their announcement, and given back with the stream", async () => {
    {
      using stream = streamOf("Start");
      const frame = frameOf(JSON.stringify({ process: { cmd: "none", args: ["x".repeat(MIB)] } }));
      stream.send(frame.subarray(0, 100));
      await until("it is counted", () => used("inputs") >= MIB);
      stream.send(frame.subarray(100));
      stream.end();
      await stream.has("executable file not found");
    }
    await until("it is given back", () => used("inputs") === 0);
    using short = streamOf("StreamInput");
    short.send(frameOf(JSON.stringify({ keepalive: {} })).subarray(0, 7));
    await until("it is open", () => used("callStreams") === 1);
    expect(used("inputs")).toBe(0);
  });

  heldTest("are given back one by one", async () => {
    using stream = streamOf("StreamInput");
    const frame = frameOf(JSON.stringify({ keepalive: {}, padding: "x".repeat(MIB) }));
    for (let count = 0; count < 4; count++) stream.send(frame);
    stream.send(frame.subarray(0, 100));
    let most = 0;
    await until("the last one is awaited", () => {
      most = Math.max(most, used("inputs"));
      return used("inputs") > MIB && most > 0;
    });
    expect(most).toBeLessThan(2 * MIB);
    stream.send(frame.subarray(100));
    stream.send(Buffer.from([0]));
    await until("it waits for the next one", () => used("inputs") === 0);
    expect(used("callStreams")).toBe(1);
  });
});

describe("a long listing", () => {
  heldTest("is counted until its client has read it", async () => {
    const directory = join(sandbox.machine.root, "many");
    mkdirSync(directory);
    for (let number = 0; number < 12_000; number++) writeFileSync(join(directory, `${number}-${"x".repeat(200)}`), "");
    {
      using client = new Client("/filesystem.Filesystem/ListDir", "application/json");
      client.pause();
      client.send(Buffer.from(JSON.stringify({ path: "/many" })));
      client.end();
      await until("the listing waits for its client", () => used("listings") > 4 * MIB && used("guestFiles") === 0);
    }
    await until("it is given back", () => used("listings") === 0);
    const { status, json } = await sandbox.rpc("filesystem.Filesystem/ListDir", { path: "/many" });
    expect([status, json.entries.length]).toEqual([200, 12_000]);
    await until("it is given back", () => used("listings") === 0);
  });
});
