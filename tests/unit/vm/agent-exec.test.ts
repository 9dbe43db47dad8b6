import { describe, expect, test } from "bun:test";
import { type AgentError, AgentProtocolError } from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  INPUT_WINDOW_BYTES_MAX,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "../../../src/vm/agent/protocol.ts";
import type { SlowReaders } from "../../../src/vm/agent/streams.ts";
import { done, exitPayload, failure, openAgent as open, SPEC, text } from "../../support/guests/agent-script.ts";
import { seededRandom } from "../../support/random.ts";
import { turns } from "../../support/waiting.ts";

describe("exec", () => {
  test("names a user in place of the numbers", async () => {
    const { guest, agent } = open();
    const run = agent.exec({ ...SPEC, cwd: "", user: { uid: 5, gid: 6 }, userName: "ann:staff" }, () => undefined);
    run.exit.catch(() => undefined);
    const { payload } = await guest.frame(HostFrame.execOpen);
    expect([payload.readUInt32LE(20), payload.readUInt32LE(24)]).toEqual([0, 0]);
    const spec = await guest.frame(HostFrame.execSpec);
    expect(readSpec(spec.payload)).toMatchObject({ hostname: "h", user: "ann:staff", cwd: "" });
  });

  test("sends the specification in pieces, and returns the figures", async () => {
    const { guest, agent } = open();
    const output: string[] = [];
    const argv = ["/bin/sh", "-c", "x".repeat(130_000)];
    const run = agent.exec({ ...SPEC, argv, env: { A: "ü" } }, (stream, chunk) => {
      output.push(`${stream}:${chunk.length}`);
      return undefined;
    });
    const { session, payload } = await guest.frame(HostFrame.execOpen);
    await guest.frame(HostFrame.execSpec, 1);
    const spec = Buffer.concat(guest.frames.filter(({ type }) => type === HostFrame.execSpec).map((f) => f.payload));
    expect(payload.readUInt32LE(0)).toBe(spec.byteLength);
    expect(readSpec(spec)).toEqual({ hostname: "h", user: "", cwd: "/", argv, env: ["A=ü"] });
    guest.send(AgentFrame.started, session, packIntegers([32, 2]));
    await run.started;
    guest.send(AgentFrame.output, session, packIntegers([32, Stream.stderr]), text("abc"));
    guest.send(AgentFrame.exit, session, exitPayload(137, 3));
    expect(await run.exit).toEqual({
      exitCode: 137,
      signal: 9,
      coreDumped: false,
      timedOut: true,
      oomKilled: true,
      cpuTimeUs: 1500n,
      memoryPeakBytes: 4096n,
      wallUs: 9n,
      usage: {
        userTimeUs: 1n,
        systemTimeUs: 2n,
        residentKibMax: 3n,
        minorFaults: 4n,
        majorFaults: 5n,
        blocksIn: 6n,
        blocksOut: 7n,
        voluntarySwitches: 8n,
        involuntarySwitches: 9n,
      },
    });
    expect(output).toEqual(["stderr:3"]);
  });

  test.each([
    [0, { exitCode: 0, signal: null, coreDumped: false }],
    [200 << 8, { exitCode: 200, signal: null, coreDumped: false }],
    [11 | 0x80, { exitCode: 139, signal: 11, coreDumped: true }],
    [64, { exitCode: 192, signal: 64, coreDumped: false }],
  ])("a wait status of %d is read", async (status, expected) => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    guest.send(AgentFrame.exit, session, exitPayload(expected.exitCode, 0, status));
    expect(await run.exit).toMatchObject(expected);
  });

  test("standard input waits for credit, and ends with a frame", async () => {
    const { guest, agent } = open();
    const stdin = Buffer.from(seededRandom(5).bytes(INPUT_WINDOW_BYTES_INITIAL + 1000));
    agent.exec({ ...SPEC, stdin: [stdin] }, () => undefined);
    const { session, payload } = await guest.frame(HostFrame.execOpen);
    expect(payload.readUInt32LE(4)).toBe(1);
    const received = () =>
      Buffer.concat(guest.frames.filter(({ type }) => type === HostFrame.stdin).map((f) => f.payload));
    await guest.frame(HostFrame.stdin, INPUT_WINDOW_BYTES_INITIAL / FRAME_PAYLOAD_BYTES_MAX - 1);
    await turns();
    expect(received().byteLength).toBe(INPUT_WINDOW_BYTES_INITIAL);
    guest.send(AgentFrame.window, session, packIntegers([32, Stream.stdin], [32, 600]));
    guest.send(AgentFrame.window, session, packIntegers([32, Stream.stdin], [32, 600]));
    await guest.frame(HostFrame.stdin, 2);
    expect(received()).toEqual(stdin);
    expect(guest.frames.at(-1)?.payload.byteLength).toBe(0);
  });

  test("standard input that the command does not read is released when the command ends", async () => {
    const { guest, agent } = open();
    const { promise: letGo, resolve } = Promise.withResolvers<void>();
    let readBytes = 0;
    async function* endless() {
      using _open = { [Symbol.dispose]: resolve };
      for (;;) {
        readBytes += 65_536;
        yield new Uint8Array(65_536);
      }
    }
    const run = agent.exec({ ...SPEC, stdin: endless() }, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    await guest.frame(HostFrame.stdin, INPUT_WINDOW_BYTES_INITIAL / FRAME_PAYLOAD_BYTES_MAX - 1);
    guest.send(AgentFrame.exit, session, exitPayload(0, 0, 0));
    await run.exit;
    await letGo;
    expect(readBytes).toBeLessThanOrEqual(INPUT_WINDOW_BYTES_INITIAL + 65_536);
  });

  test("output is answered with credit, and output beyond the credit breaks the protocol", async () => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    const chunk = Buffer.alloc(FRAME_PAYLOAD_BYTES_MAX - 4);
    let granted = WINDOW_BYTES_INITIAL;
    for (let sent = 0; sent < 4 * WINDOW_BYTES_INITIAL; sent += chunk.byteLength) {
      guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), chunk);
    }
    await guest.frame(HostFrame.window);
    for (const { type, payload } of guest.frames) if (type === HostFrame.window) granted += payload.readUInt32LE(4);
    expect(granted).toBeGreaterThan(4 * WINDOW_BYTES_INITIAL);
    guest.send(AgentFrame.exit, session, exitPayload(0));
    expect((await run.exit).exitCode).toBe(0);
  });

  /** A running command whose sink returns what `store` returns, and the credit that it was granted. */
  async function started(store: () => Promise<void> | undefined, readers?: SlowReaders) {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, store, { readers });
    const { session } = await guest.frame(HostFrame.execSpec);
    const send = (stream: number, bytes = 5000) =>
      guest.send(AgentFrame.output, session, packIntegers([32, stream]), Buffer.alloc(bytes));
    const granted = () =>
      guest.frames
        .filter(({ type }) => type === HostFrame.window)
        .map(({ payload }) => [payload.readUInt32LE(0), payload.readUInt32LE(4)]);
    const end = async () => {
      guest.send(AgentFrame.exit, session, exitPayload(0));
      expect((await run.exit).exitCode).toBe(0);
    };
    return { agent, send, granted, end };
  }

  test("credit follows what is stored, in the order of the output", async () => {
    const [written, more] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const waits = [undefined, written.promise, written.promise, more.promise, more.promise];
    const { send, granted, end } = await started(() => waits.shift());
    for (const stream of [Stream.stdout, Stream.stdout, Stream.stdout, Stream.stderr, Stream.stderr]) send(stream);
    // The sink has stored this one already: it waits for those before it.
    send(Stream.stderr);
    await turns();
    expect(granted()).toEqual([]);
    written.resolve();
    await turns();
    expect(granted()).toEqual([[Stream.stdout, 15_000]]);
    more.resolve();
    await turns();
    expect(granted().slice(1)).toEqual([[Stream.stderr, 15_000]]);
    await end();
  });

  test("credit does not follow what is stored behind a gap", async () => {
    const [first, second] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const waits = [first.promise, second.promise, second.promise];
    const { send, granted, end } = await started(() => waits.shift());
    for (let count = 0; count < 3; count++) send(Stream.stdout);
    second.resolve();
    await turns();
    expect(granted()).toEqual([]);
    first.resolve();
    await turns();
    expect(granted()).toEqual([[Stream.stdout, 15_000]]);
    await end();
  });

  test("credit for both streams waits for slow readers, and is granted in one frame", async () => {
    let slow: PromiseWithResolvers<void> | null = Promise.withResolvers();
    const read = () => {
      slow?.resolve();
      slow = null;
    };
    const { send, granted, end } = await started(() => undefined, {
      get drained() {
        return slow?.promise;
      },
    });
    for (const stream of [Stream.stdout, Stream.stderr, Stream.stdout]) send(stream);
    const before = slow;
    slow = Promise.withResolvers();
    before.resolve();
    for (const stream of [Stream.stdout, Stream.stderr, Stream.stdout, Stream.stderr]) send(stream);
    await turns();
    expect(granted()).toEqual([]);
    read();
    await turns();
    expect(granted()).toEqual([
      [Stream.stdout, 20_000],
      [Stream.stderr, 15_000],
    ]);
    await end();
  });

  test("a store that stalls gets no more output than the windows, whatever the guest does", async () => {
    let storedBytes = 0;
    const stalled = new Promise<void>(() => undefined);
    const { agent, send, granted } = await started(() => {
      storedBytes += 1;
      return stalled;
    });
    for (const stream of [Stream.stdout, Stream.stderr]) {
      for (let bytes = 0; bytes < WINDOW_BYTES_INITIAL; bytes += 32_768) send(stream, 32_768);
    }
    await turns();
    expect([granted(), storedBytes]).toEqual([[], 16]);
    send(Stream.stdout, 1);
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
    expect(storedBytes).toBe(16);
  });

  test("sends no credit for a command that ended while its output waited", async () => {
    const { guest, agent } = open();
    const written = Promise.withResolvers<void>();
    const run = agent.exec(SPEC, () => written.promise);
    const { session } = await guest.frame(HostFrame.execSpec);
    guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), Buffer.alloc(60_000));
    guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), Buffer.alloc(60_000));
    guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), Buffer.alloc(60_000));
    guest.send(AgentFrame.exit, session, exitPayload(0));
    await run.exit;
    written.resolve();
    await turns();
    expect(guest.frames.some(({ type }) => type === HostFrame.window)).toBe(false);
  });

  test.each([
    ["an exit code that no process has", AgentFrame.exit, exitPayload(256)],
    ["an unknown flag", AgentFrame.exit, exitPayload(0, 4)],
    ["a short exit", AgentFrame.exit, exitPayload(0).subarray(1)],
    ["an exit of version 2", AgentFrame.exit, Buffer.alloc(32)],
    ["a reserve in an exit", AgentFrame.exit, exitPayload(0, 0, 0, 1)],
    ["the wait status of a stopped process", AgentFrame.exit, exitPayload(255, 0, 0x137f)],
    ["a wait status that is too large", AgentFrame.exit, exitPayload(0, 0, 0x10000)],
    ["a wait status of both kinds", AgentFrame.exit, exitPayload(137, 0, 0x109)],
    ["an exit code that differs from the status", AgentFrame.exit, exitPayload(1, 0, 0)],
    ["output of an unknown stream", AgentFrame.output, packIntegers([32, 3], [16, 0])],
    ["output without a stream", AgentFrame.output, Buffer.alloc(3)],
    ["output without bytes", AgentFrame.output, packIntegers([32, Stream.stdout])],
    ["more credit than there can be", AgentFrame.window, packIntegers([32, 0], [32, INPUT_WINDOW_BYTES_MAX])],
    ["the answer to a dial", AgentFrame.netOpened, Buffer.alloc(0)],
    ["the data of a connection", AgentFrame.netData, Buffer.alloc(1)],
    ["the end of a connection", AgentFrame.netEnd, Buffer.alloc(0)],
    ["credit for another stream", AgentFrame.window, packIntegers([32, 1], [32, 0])],
    ["the answer to another request", AgentFrame.done, done()],
    ["a short error", AgentFrame.error, Buffer.alloc(7)],
  ])("%s breaks the protocol", async (_, type, payload) => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    guest.send(type, session, payload);
    expect(await failure(run.exit)).toBeInstanceOf(AgentProtocolError);
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
    expect(guest.channel.paused).toBe(true);
  });

  test("a signal reaches a running command", async () => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    run.signal(15);
    expect((await guest.frame(HostFrame.signal)).payload).toEqual(Buffer.from([15, 0, 0, 0, 0, 0, 0, 0]));
    run.signal(2, { group: true });
    expect((await guest.frame(HostFrame.signal, 1)).payload).toEqual(Buffer.from([2, 0, 0, 0, 1, 0, 0, 0]));
    guest.send(AgentFrame.exit, session, exitPayload(143));
    await run.exit;
    run.signal(9);
    await turns();
    expect(guest.frames.filter(({ type }) => type === HostFrame.signal).length).toBe(2);
  });

  test("the host refuses a specification that is too large for the guest", async () => {
    const { guest, agent } = open();
    const run = agent.exec({ ...SPEC, argv: ["/bin/echo", "x".repeat(4_200_000)] }, () => undefined);
    expect(((await failure(run.exit)) as AgentError).errno).toBe(7);
    expect(guest.frames).toEqual([]);
  });
});

function readSpec(spec: Buffer): { hostname: string; user: string; cwd: string; argv: string[]; env: string[] } {
  let offset = 0;
  const number = () => {
    offset += 4;
    return spec.readUInt32LE(offset - 4);
  };
  const string = () => {
    const length = number();
    offset += length;
    return spec.toString("utf8", offset - length, offset);
  };
  const list = () => Array.from({ length: number() }, string);
  const parsed = { hostname: string(), user: string(), cwd: string(), argv: list(), env: list() };
  expect(offset).toBe(spec.byteLength);
  return parsed;
}
