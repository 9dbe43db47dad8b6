import { heapStats } from "bun:jsc";
import { describe, expect, test } from "bun:test";
import { parseGuestPathText } from "../../../src/domain/tree/guest-path.ts";
import {
  Agent,
  AgentClosedError,
  AgentError,
  AgentProtocolError,
  AgentRefusedError,
} from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import type { GuestNetwork } from "../../../src/vm/agent/guest-network.ts";
import {
  AddressKind,
  AgentFrame,
  CONNECTIONS_COUNT_MAX,
  HostFrame,
  PROCESSES_COUNT_MAX,
  PROTOCOL_VERSION,
  SESSION_GUEST_BIT,
  Stream,
  TASKS_COUNT_MAX,
  WINDOW_BYTES_INITIAL,
} from "../../../src/vm/agent/protocol.ts";
import {
  done,
  exitPayload,
  failure,
  openAgent as open,
  problem,
  SPEC,
  text,
} from "../../support/guests/agent-script.ts";
import { ScriptedAgent } from "../../support/guests/scripted-peer.ts";
import { seededRandom } from "../../support/random.ts";
import { turns } from "../../support/waiting.ts";

describe("greeting", () => {
  test("carries the kernel's version, also when it arrives before it is awaited", async () => {
    const guest = new ScriptedAgent();
    guest.send(AgentFrame.hello, 0, packIntegers([32, PROTOCOL_VERSION], [32, 0]), text("6.1.0"));
    expect(await Agent.open(guest.channel).hello(AbortSignal.timeout(1000))).toEqual({ kernelRelease: "6.1.0" });
  });

  test("is refused with another protocol version", async () => {
    const { guest, agent } = open();
    guest.send(AgentFrame.hello, 0, packIntegers([32, PROTOCOL_VERSION + 1], [32, 0]));
    expect(await failure(agent.hello(AbortSignal.timeout(1000)))).toBeInstanceOf(AgentProtocolError);
  });

  test("is refused when it is sent twice", async () => {
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
  test("SYNC carries version, time and entropy, and expects its nonce in the answer", async () => {
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
      await turns();
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
    expect(putOpen?.payload).toEqual(
      Buffer.concat([packIntegers([32, 0o640], [32, 0], [32, 0], [32, 0], [64, 4]), text("/f")]),
    );
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

  test("do not send the rest of a file that the guest refused", async () => {
    const { guest, agent } = open();
    let pulled = 0;
    const content = (async function* () {
      for (; pulled < 100; pulled++) {
        yield Buffer.alloc(1000);
        await turns(1);
      }
    })();
    const put = agent.putFile({ path: parseGuestPathText("/f"), mode: 0o644, sizeBytes: 100_000, content });
    const { session } = await guest.frame(HostFrame.putOpen);
    guest.send(AgentFrame.error, session, problem(28, "full"));
    expect(await failure(put)).toBeInstanceOf(AgentError);
    expect(pulled).toBeLessThan(10);
  });

  test("fail for a file whose content does not have its announced size", async () => {
    for (const sizeBytes of [1, 3]) {
      const { agent } = open();
      const content = (async function* () {
        yield text("ab");
      })();
      const put = agent.putFile({ path: parseGuestPathText("/f"), mode: 0o644, sizeBytes, content });
      expect((await failure(put)).message).toContain("announced size");
    }
  });

  test("are sent only as far as the guest's table has room", async () => {
    const { guest, agent } = open();
    const freezes = Array.from({ length: TASKS_COUNT_MAX + 5 }, () => agent.freeze());
    await guest.frame(HostFrame.freeze, TASKS_COUNT_MAX - 1);
    await turns();
    expect(guest.frames.length).toBe(TASKS_COUNT_MAX);
    for (let index = 0; index < freezes.length; index++) {
      guest.send(AgentFrame.done, (await guest.frame(HostFrame.freeze, index)).session, done());
    }
    await Promise.all(freezes);
    expect(new Set(guest.frames.map(({ session }) => session)).size).toBe(freezes.length);
  });

  test("refuse one process or connection too many on the host, without delay for others", async () => {
    const { guest, agent } = open();
    const runs = Array.from({ length: PROCESSES_COUNT_MAX }, () => agent.exec(SPEC, () => undefined));
    const dials = Array.from({ length: CONNECTIONS_COUNT_MAX }, () => agent.dial(80).catch((error: Error) => error));
    expect(((await failure(agent.exec(SPEC, () => undefined).exit)) as AgentError).errno).toBe(11);
    expect(((await failure(agent.dial(80))) as AgentError).errno).toBe(11);
    const frozen = agent.freeze();
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.freeze)).session, done());
    await frozen;
    guest.send(AgentFrame.exit, (await guest.frame(HostFrame.execSpec)).session, exitPayload(0));
    expect((await runs[0]?.exit)?.exitCode).toBe(0);
    const next = agent.exec(SPEC, () => undefined);
    guest.send(AgentFrame.exit, (await guest.frame(HostFrame.execSpec, PROCESSES_COUNT_MAX)).session, exitPayload(3));
    expect((await next.exit).exitCode).toBe(3);
    guest.channel.deliver(null);
    for (const dial of dials) expect(await dial).toBeInstanceOf(AgentClosedError);
  });
});

describe("index", () => {
  test("arrives at the speed of its reader, and ends with the listing", async () => {
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
      await turns(1);
    }
    guest.send(AgentFrame.done, session, done(5n));
    expect(await reading).toBe(20 * chunk.byteLength);
    expect(guest.frames.filter(({ type }) => type === HostFrame.window).length).toBeGreaterThan(1);
  });

  test("grants no credit without a reader", async () => {
    const { guest, agent } = open();
    const iterator = agent.index(0)[Symbol.asyncIterator]();
    const first = iterator.next();
    const { session } = await guest.frame(HostFrame.index);
    const chunk = Buffer.alloc(WINDOW_BYTES_INITIAL / 8);
    for (let sent = 0; sent < 9; sent++) guest.send(AgentFrame.output, session, packIntegers([32, 1]), chunk);
    expect((await first).value?.byteLength).toBe(chunk.byteLength);
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });

  test("fails with the guest's error", async () => {
    const { guest, agent } = open();
    const next = agent.index(2).next();
    const { session } = await guest.frame(HostFrame.index);
    guest.send(AgentFrame.error, session, problem(5, "read"));
    expect(await failure(next)).toBeInstanceOf(AgentError);
  });
});

/** A network that treats each connection differently, and reads and writes those that it accepts. */
function eagerNetwork(seed: number): GuestNetwork {
  let number = seed;
  return {
    resolve: async ({ name }) => name.length % 4,
    open: (_, connection) => {
      number += 1;
      if (number % 5 === 0) return connection.refuse(1 + (number % 7));
      if (number % 5 === 1) return;
      connection.accept();
      if (number % 5 === 2) return connection.reset();
      void connection.write(Buffer.alloc(100_000)).then(() => connection.end());
      const read = async () => {
        for await (const chunk of connection.chunks()) expect(chunk.byteLength).toBeGreaterThan(0);
      };
      read().catch((error: Error) =>
        expect([AgentClosedError, AgentProtocolError]).toContain(error.constructor as never),
      );
    },
  };
}

/** A NET_OPEN that is often well formed. */
function openPayload(random: ReturnType<typeof seededRandom>): Uint8Array {
  const kind = [AddressKind.name, AddressKind.ipv4, AddressKind.ipv6, 1][random.below(4)] ?? 0;
  const host = [text("a.example"), Buffer.alloc(4, 9), Buffer.alloc(16, 9), text(""), text("A"), text("a..b")];
  const fitting = { [AddressKind.name]: host[0], [AddressKind.ipv4]: host[1], [AddressKind.ipv6]: host[2] };
  const chosen = random.below(10) === 0 ? host[random.below(host.length)] : (fitting as Record<number, Buffer>)[kind];
  return Buffer.concat([packIntegers([16, random.below(20) === 0 ? 0 : 443], [16, kind]), chosen ?? text("")]);
}

describe("a hostile or dying guest", () => {
  test("ends every request by closing the stream", async () => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const listing = agent.index(0).next();
    await guest.frame(HostFrame.index);
    guest.channel.deliver(null);
    for (const promise of [run.started, run.exit, listing, agent.freeze(), agent.hello(AbortSignal.timeout(1000))]) {
      expect(await failure(promise)).toBeInstanceOf(AgentClosedError);
    }
  });

  test.each([
    ["sends data for an unopened session of its own", AgentFrame.netData, text("x")],
    ["grants credit for an unopened session of its own", AgentFrame.window, packIntegers([32, 3], [32, 1])],
  ])("that %s breaks the protocol", async (_, type, payload) => {
    const { guest, agent } = open();
    guest.send(type, SESSION_GUEST_BIT + 1, payload);
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });

  test("breaks the protocol with a frame for an unknown session", async () => {
    const { guest, agent } = open();
    const frozen = agent.freeze();
    const { session } = await guest.frame(HostFrame.freeze);
    guest.send(AgentFrame.done, session + 1, done());
    expect(await failure(frozen)).toBeInstanceOf(AgentProtocolError);
  });

  test("is cut off at its first frame for a process that does not exist, and uses no memory", async () => {
    const { guest, agent } = open();
    const run = agent.exec(SPEC, () => undefined);
    const { session } = await guest.frame(HostFrame.execOpen);
    guest.send(AgentFrame.started, session, packIntegers([32, 2]));
    guest.send(AgentFrame.exit, session, exitPayload(0));
    expect((await run.exit).exitCode).toBe(0);
    const other = agent.exec(SPEC, () => undefined);
    await guest.frame(HostFrame.execOpen, 1);
    const output = Buffer.alloc(65_536);
    // Frames for a process that has ended, and for processes that never existed.
    guest.send(AgentFrame.output, session, output);
    expect(await failure(other.exit)).toBeInstanceOf(AgentProtocolError);
    expect(guest.channel.paused).toBe(true);
    Bun.gc(true);
    const before = heapStats().heapSize + process.memoryUsage().arrayBuffers;
    for (let forged = 0; forged < 10_000; forged++) guest.send(AgentFrame.output, 1000 + forged, output);
    Bun.gc(true);
    expect(heapStats().heapSize + process.memoryUsage().arrayBuffers - before).toBeLessThan(5_000_000);
    expect(await failure(agent.exec(SPEC, () => undefined).started)).toBeInstanceOf(AgentProtocolError);
  });

  test("has a log of limited size, whose control characters are replaced", () => {
    const { guest, lines } = open();
    for (let line = 0; line < 1000; line++) guest.send(AgentFrame.log, 0, text(`\x1b]0;title\x07 ${"y".repeat(5000)}`));
    expect(lines.length).toBeLessThanOrEqual(200);
    expect(lines[0]?.length).toBeLessThanOrEqual(1024);
    expect(lines[0]).toStartWith("?]0;title? y");
  });

  test("gets answers or a protocol error for random frames", async () => {
    const types = Object.values(AgentFrame);
    for (let seed = 1; seed <= 300; seed++) {
      const random = seededRandom(seed);
      const { guest, agent } = open();
      const run = agent.exec({ ...SPEC, stdin: [Buffer.alloc(10)] }, () => undefined);
      const terminal = agent.exec({ ...SPEC, terminal: { rows: 1, columns: 2 }, stdin: "open" }, () => undefined);
      const requests: Promise<unknown>[] = [
        run.started,
        run.exit,
        agent.mount({ layers: 1, scratch: true }),
        agent.index(1).next(),
        terminal.exit,
        terminal.write(Buffer.alloc(200_000)),
        agent.dial(80).then(async (connection) => {
          const written = connection.write(Buffer.alloc(100_000)).then(() => connection.end());
          for await (const chunk of connection.chunks()) expect(chunk.byteLength).toBeGreaterThan(0);
          if (seed % 2 === 0) connection.reset();
          await written;
        }),
        agent.network(eagerNetwork(seed)),
      ];
      const settled = Promise.allSettled(requests);
      const dialled = (await guest.frame(HostFrame.netDial)).session;
      for (let frame = 0; frame < 30; frame++) {
        const type = types[random.below(types.length)] ?? AgentFrame.log;
        const sizes = [0, 4, 8, 32, 100, random.below(2000)];
        const payload = random.bytes(sizes[random.below(sizes.length)] ?? 0);
        if (random.below(3) > 0) payload.fill(0, 0, 8);
        const ofGuest = SESSION_GUEST_BIT + (random.below(3) === 0 ? random.below(30) : frame);
        guest.send(type, random.below(4) === 0 ? ofGuest : random.below(9), payload);
        // Most of the guest's connections exist.
        if (random.below(3) === 0) guest.send(AgentFrame.netOpen, SESSION_GUEST_BIT + frame, openPayload(random));
        // The connection exists in most cases, so that the code for its data is reached.
        if (seed % 3 === 0 && frame === 0) guest.send(AgentFrame.netOpened, dialled);
        if (frame % 8 === 0) await Promise.resolve();
      }
      guest.channel.deliver(null);
      for (const result of await settled) {
        if (result.status === "fulfilled") continue;
        const expected = [AgentError, AgentProtocolError, AgentClosedError, AgentRefusedError].some(
          (kind) => result.reason instanceof kind,
        );
        expect({ seed, expected, reason: String(result.reason) }).toMatchObject({ expected: true });
      }
    }
  });
});
