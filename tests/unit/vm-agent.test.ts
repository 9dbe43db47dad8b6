import { describe, expect, test } from "bun:test";
import { parseGuestPathText } from "../../src/domain/guest-path.ts";
import { Agent, AgentClosedError, AgentError, AgentProtocolError } from "../../src/vm/agent.ts";
import { packIntegers } from "../../src/vm/frames.ts";
import {
  AgentFrame,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  PROTOCOL_VERSION,
  SESSIONS_COUNT_MAX,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "../../src/vm/protocol.ts";
import { seededRandom } from "../support/random.ts";
import { ScriptedAgent } from "../support/scripted-peer.ts";

const text = (value: string) => Buffer.from(value);
const done = (value = 0n) => packIntegers([64, value]);
const problem = (errno: number, message: string) => Buffer.concat([packIntegers([32, errno], [32, 0]), text(message)]);
const SPEC = { argv: ["/bin/true"], env: {}, cwd: "/", hostname: "h", timeoutMs: 1000 };
const exitPayload = (code: number, flags = 0) => packIntegers([32, flags], [32, code], [64, 1500], [64, 4096], [64, 9]);

function open() {
  const guest = new ScriptedAgent();
  const lines: string[] = [];
  return { guest, lines, agent: Agent.open(guest.channel, { log: (line) => lines.push(line) }) };
}

async function failure(promise: Promise<unknown>): Promise<Error> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof Error) return error;
  }
  throw new Error("it did not fail");
}

describe("greeting", () => {
  test("tells the kernel, also when it came before it was asked for", async () => {
    const guest = new ScriptedAgent();
    guest.send(AgentFrame.hello, 0, packIntegers([32, PROTOCOL_VERSION], [32, 0]), text("6.1.0"));
    expect(await Agent.open(guest.channel).hello(AbortSignal.timeout(1000))).toEqual({ kernelRelease: "6.1.0" });
  });

  test("of another protocol version is refused", async () => {
    const { guest, agent } = open();
    guest.send(AgentFrame.hello, 0, packIntegers([32, PROTOCOL_VERSION + 1], [32, 0]));
    expect(await failure(agent.hello(AbortSignal.timeout(1000)))).toBeInstanceOf(AgentProtocolError);
  });

  test("twice is refused", async () => {
    const { guest, agent } = open();
    const hello = packIntegers([32, PROTOCOL_VERSION], [32, 0]);
    guest.send(AgentFrame.hello, 0, hello);
    guest.send(AgentFrame.hello, 0, hello);
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });

  test("ends with the reason of the signal", async () => {
    const { agent } = open();
    expect((await failure(agent.hello(AbortSignal.abort(new Error("enough"))))).message).toBe("enough");
  });
});

describe("requests", () => {
  test("SYNC carries version, time and entropy, and wants its nonce back", async () => {
    const { guest, agent } = open();
    const entropy = new Uint8Array(32).fill(9);
    const synced = agent.sync({ realtimeNs: 123_456_789_000_000_000n, entropy });
    const { session, payload } = await guest.frame(HostFrame.sync);
    expect(payload.readUInt32LE(0)).toBe(PROTOCOL_VERSION);
    expect(payload.readBigUInt64LE(16)).toBe(123_456_789_000_000_000n);
    expect(payload.subarray(24)).toEqual(Buffer.from(entropy));
    guest.send(AgentFrame.synced, session, payload.subarray(8, 16));
    await synced;
    const second = agent.sync({ realtimeNs: 1n, entropy });
    const again = await guest.frame(HostFrame.sync, 1);
    guest.send(AgentFrame.synced, again.session, payload.subarray(8, 16));
    expect(await failure(second)).toBeInstanceOf(AgentProtocolError);
  });

  test("are sent in the order of their calls, without waiting for answers", async () => {
    const { guest, agent } = open();
    const mounted = agent.mount({ layers: 3, scratch: true });
    const content = (async function* () {
      yield text("ab");
      await Bun.sleep(5);
      yield text("cd");
    })();
    const put = agent.putFile({ path: parseGuestPathText("/f"), mode: 0o640, sizeBytes: 4, content });
    const run = agent.exec(SPEC, () => undefined);
    await guest.frame(HostFrame.execSpec);
    expect(guest.frames.map(({ type }) => type)).toEqual([
      HostFrame.mount,
      HostFrame.putOpen,
      HostFrame.putData,
      HostFrame.putData,
      HostFrame.execOpen,
      HostFrame.execSpec,
    ]);
    const [mount, putOpen, , , exec] = guest.frames;
    expect(mount?.payload).toEqual(Buffer.from([3, 0, 1, 0]));
    expect(putOpen?.payload).toEqual(Buffer.concat([packIntegers([32, 0o640], [32, 0], [64, 4]), text("/f")]));
    guest.send(AgentFrame.done, mount?.session ?? 0, done());
    guest.send(AgentFrame.error, putOpen?.session ?? 0, problem(28, "write /f: \x1b[31mNo space"));
    guest.send(AgentFrame.error, exec?.session ?? 0, problem(125, "an earlier step failed"));
    await mounted;
    const error = await failure(put);
    expect(error).toBeInstanceOf(AgentError);
    expect((error as AgentError).errno).toBe(28);
    expect(error.message).toBe("write /f: ?[31mNo space");
    expect(await failure(run.started)).toBeInstanceOf(AgentError);
    expect(await failure(run.exit)).toBeInstanceOf(AgentError);
  });

  test("a file that the guest refused is not sent any further", async () => {
    const { guest, agent } = open();
    let pulled = 0;
    const content = (async function* () {
      for (; pulled < 100; pulled++) {
        yield Buffer.alloc(1000);
        await Bun.sleep(0);
      }
    })();
    const put = agent.putFile({ path: parseGuestPathText("/f"), mode: 0o644, sizeBytes: 100_000, content });
    const { session } = await guest.frame(HostFrame.putOpen);
    guest.send(AgentFrame.error, session, problem(28, "full"));
    expect(await failure(put)).toBeInstanceOf(AgentError);
    expect(pulled).toBeLessThan(10);
  });

  test("a file that is not as long as said fails", async () => {
    for (const sizeBytes of [1, 3]) {
      const { agent } = open();
      const content = (async function* () {
        yield text("ab");
      })();
      const put = agent.putFile({ path: parseGuestPathText("/f"), mode: 0o644, sizeBytes, content });
      expect((await failure(put)).message).toContain("not as long");
    }
  });

  test("no more sessions are open than the guest's table holds", async () => {
    const { guest, agent } = open();
    const freezes = Array.from({ length: SESSIONS_COUNT_MAX + 5 }, () => agent.freeze());
    await guest.frame(HostFrame.freeze, SESSIONS_COUNT_MAX - 1);
    await Bun.sleep(5);
    expect(guest.frames.length).toBe(SESSIONS_COUNT_MAX);
    for (let index = 0; index < freezes.length; index++) {
      guest.send(AgentFrame.done, (await guest.frame(HostFrame.freeze, index)).session, done());
    }
    await Promise.all(freezes);
    expect(new Set(guest.frames.map(({ session }) => session)).size).toBe(freezes.length);
  });
});

describe("exec", () => {
  test("sends the specification in pieces and gives figures back", async () => {
    const { guest, agent } = open();
    const output: string[] = [];
    const argv = ["/bin/sh", "-c", "x".repeat(130_000)];
    const run = agent.exec({ ...SPEC, argv, env: { A: "ü" } }, (stream, chunk) =>
      output.push(`${stream}:${chunk.length}`),
    );
    const { session, payload } = await guest.frame(HostFrame.execOpen);
    await guest.frame(HostFrame.execSpec, 1);
    const spec = Buffer.concat(guest.frames.filter(({ type }) => type === HostFrame.execSpec).map((f) => f.payload));
    expect(payload.readUInt32LE(0)).toBe(spec.byteLength);
    expect(readSpec(spec)).toEqual({ hostname: "h", cwd: "/", argv, env: ["A=ü"] });
    guest.send(AgentFrame.started, session, packIntegers([32, 2]));
    await run.started;
    guest.send(AgentFrame.output, session, packIntegers([32, Stream.stderr]), text("abc"));
    guest.send(AgentFrame.exit, session, exitPayload(137, 3));
    expect(await run.exit).toEqual({
      exitCode: 137,
      timedOut: true,
      oomKilled: true,
      cpuTimeUs: 1500n,
      memoryPeakBytes: 4096n,
      wallUs: 9n,
    });
    expect(output).toEqual(["stderr:3"]);
  });

  test("standard input waits for credit, and its end is told", async () => {
    const { guest, agent } = open();
    const stdin = Buffer.from(seededRandom(5).bytes(WINDOW_BYTES_INITIAL + 1000));
    agent.exec({ ...SPEC, stdin: [stdin] }, () => undefined);
    const { session, payload } = await guest.frame(HostFrame.execOpen);
    expect(payload.readUInt32LE(4)).toBe(1);
    const received = () =>
      Buffer.concat(guest.frames.filter(({ type }) => type === HostFrame.stdin).map((f) => f.payload));
    await guest.frame(HostFrame.stdin, WINDOW_BYTES_INITIAL / FRAME_PAYLOAD_BYTES_MAX - 1);
    await Bun.sleep(5);
    expect(received().byteLength).toBe(WINDOW_BYTES_INITIAL);
    guest.send(AgentFrame.window, session, packIntegers([32, Stream.stdin], [32, 600]));
    guest.send(AgentFrame.window, session, packIntegers([32, Stream.stdin], [32, 600]));
    await guest.frame(HostFrame.stdin, 5);
    expect(received()).toEqual(stdin);
    expect(guest.frames.at(-1)?.payload.byteLength).toBe(0);
  });

  test("output is answered with credit, and output beyond it ends everything", async () => {
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

  test.each([
    ["an exit code of no process", AgentFrame.exit, exitPayload(256)],
    ["an unknown flag", AgentFrame.exit, exitPayload(0, 4)],
    ["a short exit", AgentFrame.exit, Buffer.alloc(31)],
    ["output of no stream", AgentFrame.output, packIntegers([32, 3])],
    ["output without a stream", AgentFrame.output, Buffer.alloc(3)],
    ["credit that was never used", AgentFrame.window, packIntegers([32, 0], [32, 1])],
    ["credit for another stream", AgentFrame.window, packIntegers([32, 1], [32, 0])],
    ["the answer of another request", AgentFrame.done, done()],
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

  test("a signal reaches a command that runs", async () => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    run.signal(15);
    expect((await guest.frame(HostFrame.signal)).payload).toEqual(Buffer.from([15, 0, 0, 0]));
    guest.send(AgentFrame.exit, session, exitPayload(143));
    await run.exit;
    run.signal(9);
    await Bun.sleep(2);
    expect(guest.frames.filter(({ type }) => type === HostFrame.signal).length).toBe(1);
  });

  test("a specification that no guest takes is refused here", async () => {
    const { guest, agent } = open();
    const run = agent.exec({ ...SPEC, argv: ["/bin/echo", "x".repeat(4_200_000)] }, () => undefined);
    expect(((await failure(run.exit)) as AgentError).errno).toBe(7);
    expect(guest.frames).toEqual([]);
  });
});

describe("index", () => {
  test("flows with its reader, and ends with the listing", async () => {
    const { guest, agent } = open();
    const reading = (async () => {
      let bytes = 0;
      for await (const chunk of agent.index("scratch")) bytes += chunk.byteLength;
      return bytes;
    })();
    const { session, payload } = await guest.frame(HostFrame.index);
    expect(payload).toEqual(Buffer.from([0xff, 0xff]));
    const chunk = Buffer.alloc(WINDOW_BYTES_INITIAL / 8);
    for (let sent = 0; sent < 20; sent++) {
      guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), chunk);
      await Bun.sleep(1);
    }
    guest.send(AgentFrame.done, session, done(5n));
    expect(await reading).toBe(20 * chunk.byteLength);
    expect(guest.frames.filter(({ type }) => type === HostFrame.window).length).toBeGreaterThan(1);
  });

  test("an unread listing is given no more credit", async () => {
    const { guest, agent } = open();
    const iterator = agent.index(0)[Symbol.asyncIterator]();
    const first = iterator.next();
    const { session } = await guest.frame(HostFrame.index);
    const chunk = Buffer.alloc(WINDOW_BYTES_INITIAL / 8);
    for (let sent = 0; sent < 9; sent++) guest.send(AgentFrame.output, session, packIntegers([32, 1]), chunk);
    expect((await first).value?.byteLength).toBe(chunk.byteLength);
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });

  test("fails as the guest says", async () => {
    const { guest, agent } = open();
    const next = agent.index(2).next();
    const { session } = await guest.frame(HostFrame.index);
    guest.send(AgentFrame.error, session, problem(5, "read"));
    expect(await failure(next)).toBeInstanceOf(AgentError);
  });
});

describe("a hostile or dying guest", () => {
  test("a closed stream ends every request", async () => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const listing = agent.index(0).next();
    await guest.frame(HostFrame.index);
    guest.channel.deliver(null);
    for (const promise of [run.started, run.exit, listing, agent.freeze(), agent.hello(AbortSignal.timeout(1000))]) {
      expect(await failure(promise)).toBeInstanceOf(AgentClosedError);
    }
  });

  test("a frame for no session breaks the protocol", async () => {
    const { guest, agent } = open();
    const frozen = agent.freeze();
    const { session } = await guest.frame(HostFrame.freeze);
    guest.send(AgentFrame.done, session + 1, done());
    expect(await failure(frozen)).toBeInstanceOf(AgentProtocolError);
  });

  test("its log is bounded and harmless", () => {
    const { guest, lines } = open();
    for (let line = 0; line < 1000; line++) guest.send(AgentFrame.log, 0, text(`\x1b]0;title\x07 ${"y".repeat(5000)}`));
    expect(lines.length).toBeLessThanOrEqual(200);
    expect(lines[0]?.length).toBeLessThanOrEqual(1024);
    expect(lines[0]).toStartWith("?]0;title? y");
  });

  test("random frames end in answers or a refusal, never in anything else", async () => {
    const types = Object.values(AgentFrame);
    for (let seed = 1; seed <= 300; seed++) {
      const random = seededRandom(seed);
      const { guest, agent } = open();
      const run = agent.exec({ ...SPEC, stdin: [Buffer.alloc(10)] }, () => undefined);
      const requests = [run.started, run.exit, agent.mount({ layers: 1, scratch: true }), agent.index(1).next()];
      const settled = Promise.allSettled(requests);
      await guest.frame(HostFrame.index);
      for (let frame = 0; frame < 30; frame++) {
        const type = types[random.below(types.length)] ?? AgentFrame.log;
        const sizes = [0, 4, 8, 32, 100, random.below(2000)];
        const payload = random.bytes(sizes[random.below(sizes.length)] ?? 0);
        if (random.below(3) > 0) payload.fill(0, 0, 8);
        guest.send(type, random.below(5), payload);
      }
      guest.channel.deliver(null);
      for (const result of await settled) {
        if (result.status === "fulfilled") continue;
        const expected = [AgentError, AgentProtocolError, AgentClosedError].some(
          (kind) => result.reason instanceof kind,
        );
        expect({ seed, expected, reason: String(result.reason) }).toMatchObject({ expected: true });
      }
    }
  });
});

function readSpec(spec: Buffer): { hostname: string; cwd: string; argv: string[]; env: string[] } {
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
  const parsed = { hostname: string(), cwd: string(), argv: list(), env: list() };
  expect(offset).toBe(spec.byteLength);
  return parsed;
}
