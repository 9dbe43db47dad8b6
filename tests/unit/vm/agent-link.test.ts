/** Connections and holds, against a scripted agent. */

import { describe, expect, test } from "bun:test";
import {
  type Agent,
  AgentClosedError,
  AgentError,
  AgentProtocolError,
  type AgentRefusedError,
} from "../../../src/vm/agent/agent.ts";
import { packIntegers } from "../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  ExecFlag,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  INPUT_WINDOW_BYTES_MAX,
  Refusal,
  Stream,
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
import type { ScriptedAgent } from "../../support/guests/scripted-peer.ts";
import { turns } from "../../support/waiting.ts";

const entropy = new Uint8Array(32);
const NOTHING = new Uint8Array(0);

async function connected(guest: ScriptedAgent, agent: Agent) {
  const opening = agent.dial(8080);
  const { session, payload } = await guest.frame(HostFrame.netDial);
  expect(payload).toEqual(Buffer.from([0x90, 0x1f, 0, 0]));
  guest.send(AgentFrame.netOpened, session);
  return { session, connection: await opening };
}

describe("a connection", () => {
  test("ends when both sides have ended it and the agent has confirmed it", async () => {
    const { guest, agent } = open();
    const { session, connection } = await connected(guest, agent);
    guest.send(AgentFrame.netData, session, text("hello"));
    guest.send(AgentFrame.netEnd, session);
    const seen: string[] = [];
    for await (const chunk of connection.chunks()) seen.push(Buffer.from(chunk).toString());
    expect(seen).toEqual(["hello"]);
    expect(await connection.write(text("late"))).toBe(true);
    // Credit for the host's further data arrives after the guest's own end.
    guest.send(AgentFrame.window, session, packIntegers([32, Stream.data], [32, 4]));
    await connection.end();
    guest.send(AgentFrame.window, session, packIntegers([32, Stream.data], [32, 1]));
    guest.send(AgentFrame.done, session, done());
    expect(await connection.write(text("too late"))).toBe(false);
    connection.reset();
    expect(guest.frames.map(({ type }) => type)).toEqual([HostFrame.netDial, HostFrame.netData, HostFrame.netEnd]);
    guest.send(AgentFrame.netData, session, text("x"));
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });

  test("fails with the reason when it is refused", async () => {
    const { guest, agent } = open();
    const opening = failure(agent.dial(1));
    guest.send(AgentFrame.netRefused, (await guest.frame(HostFrame.netDial)).session, packIntegers([32, 2]));
    expect(((await opening) as AgentRefusedError).reason).toBe(Refusal.refused);
    const full = failure(agent.dial(1));
    guest.send(AgentFrame.error, (await guest.frame(HostFrame.netDial, 1)).session, problem(11, "256 connections"));
    expect(await full).toBeInstanceOf(AgentError);
  });

  test("drops data after the host's reset until the agent's answer", async () => {
    const { guest, agent } = open();
    const { session, connection } = await connected(guest, agent);
    const reading = connection.chunks().next();
    connection.reset();
    connection.reset();
    expect(await failure(reading)).toBeInstanceOf(AgentClosedError);
    expect(await connection.write(text("x"))).toBe(false);
    guest.send(AgentFrame.netData, session, text("crossed"));
    guest.send(AgentFrame.netEnd, session);
    guest.send(AgentFrame.netReset, session);
    await guest.frame(HostFrame.netReset);
    expect(guest.frames.filter(({ type }) => type === HostFrame.netReset)).toHaveLength(1);
    // Only the answer ends it.
    guest.send(AgentFrame.netReset, session);
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });

  test("delivers earlier data before the guest's reset", async () => {
    const { guest, agent } = open();
    const { session, connection } = await connected(guest, agent);
    guest.send(AgentFrame.netData, session, text("some"));
    guest.send(AgentFrame.netReset, session);
    const chunks = connection.chunks();
    expect(Buffer.from((await chunks.next()).value ?? NOTHING).toString()).toBe("some");
    expect(await failure(chunks.next())).toBeInstanceOf(AgentClosedError);
    connection.reset();
    expect(guest.frames.at(-1)?.type).toBe(HostFrame.netDial);
  });

  test("grants credit to a reader that keeps up, and accepts no data beyond the credit", async () => {
    const { guest, agent } = open();
    const { session, connection } = await connected(guest, agent);
    const chunks = connection.chunks();
    guest.send(AgentFrame.netData, session, Buffer.alloc(INPUT_WINDOW_BYTES_INITIAL));
    await chunks.next();
    const more = chunks.next();
    const grant = await guest.frame(HostFrame.window);
    expect(grant.payload).toEqual(Buffer.from(packIntegers([32, Stream.data], [32, INPUT_WINDOW_BYTES_MAX])));
    for (let sent = 0; sent < INPUT_WINDOW_BYTES_MAX; sent += 65_536) {
      guest.send(AgentFrame.netData, session, Buffer.alloc(65_536));
    }
    await more;
    guest.send(AgentFrame.netData, session, Buffer.alloc(1));
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });

  test.each([
    ["empty data", AgentFrame.netData, NOTHING],
    ["a second opening", AgentFrame.netOpened, NOTHING],
    ["a refusal", AgentFrame.netRefused, packIntegers([32, 2])],
    ["an error", AgentFrame.error, problem(5, "late")],
    ["an end with a payload", AgentFrame.netEnd, Buffer.alloc(1)],
    ["a reset with a payload", AgentFrame.netReset, Buffer.alloc(1)],
    ["the end of both sides before the end of either", AgentFrame.done, done()],
    ["credit of another stream", AgentFrame.window, packIntegers([32, Stream.stdin], [32, 1])],
    ["more credit than there can be", AgentFrame.window, packIntegers([32, Stream.data], [32, INPUT_WINDOW_BYTES_MAX])],
    ["an exit", AgentFrame.exit, exitPayload(0)],
    ["output", AgentFrame.output, packIntegers([32, Stream.stdout])],
  ])("%s out of place breaks the protocol", async (_, type, payload) => {
    const { guest, agent } = open();
    const { session, connection } = await connected(guest, agent);
    const reading = connection.chunks().next();
    guest.send(type, session, payload);
    expect(await failure(reading)).toBeInstanceOf(AgentProtocolError);
  });

  test.each([
    ["data", AgentFrame.netData, text("x")],
    ["an end", AgentFrame.netEnd, NOTHING],
    ["an unknown reason", AgentFrame.netRefused, packIntegers([32, 8])],
    ["a reason too short", AgentFrame.netRefused, packIntegers([16, 2])],
  ])("%s before it is open breaks the protocol", async (_, type, payload) => {
    const { guest, agent } = open();
    const opening = agent.dial(8080);
    guest.send(type, (await guest.frame(HostFrame.netDial)).session, payload);
    expect(await failure(opening)).toBeInstanceOf(AgentProtocolError);
  });

  test("data after the guest's end breaks the protocol", async () => {
    const { guest, agent } = open();
    const { session } = await connected(guest, agent);
    guest.send(AgentFrame.netEnd, session);
    guest.send(AgentFrame.netData, session, text("x"));
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });
});

describe("a hold", () => {
  /** Answers the SYNC that the host sent. */
  async function answerSync(guest: ScriptedAgent, index = 0): Promise<void> {
    const { session, payload } = await guest.frame(HostFrame.sync, index);
    guest.send(AgentFrame.synced, session, payload.subarray(8, 16));
  }

  test("delays every frame until the SYNC, which is sent first", async () => {
    const { guest, agent } = open();
    const run = agent.exec({ ...SPEC, stdin: "open" }, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    // Enough output for a grant of credit, which happens during the hold.
    const holding = agent.hold();
    const hold = await guest.frame(HostFrame.hold);
    guest.send(AgentFrame.output, session, packIntegers([32, 1]), Buffer.alloc(65_000));
    guest.send(AgentFrame.done, hold.session, done());
    await holding;
    const written = run.write(text("typed"));
    run.signal(2);
    const frozen = agent.freeze();
    const again = agent.hold();
    await turns();
    expect(guest.frames.at(-1)?.type).toBe(HostFrame.hold);
    const synced = agent.sync({ realtimeNs: 1n, entropy });
    await answerSync(guest);
    await synced;
    expect(await written).toBe(true);
    const { session: freeze } = await guest.frame(HostFrame.freeze);
    guest.send(AgentFrame.done, freeze, done());
    await frozen;
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold, 1)).session, done());
    await again;
    const types = guest.frames.slice(2).map(({ type }) => type);
    expect(types.slice(0, 2)).toEqual([HostFrame.hold, HostFrame.sync]);
    expect(types.at(-1)).toBe(HostFrame.hold);
    expect(types.slice(2, -1).sort()).toEqual(
      [HostFrame.window, HostFrame.stdin, HostFrame.signal, HostFrame.freeze].sort(),
    );
  });

  test("waits for the answers to earlier requests", async () => {
    const { guest, agent } = open();
    const listing = agent.index(0).next();
    const index = await guest.frame(HostFrame.index);
    const holding = agent.hold();
    await turns();
    expect(guest.frames.some(({ type }) => type === HostFrame.hold)).toBe(false);
    guest.send(AgentFrame.done, index.session, done());
    expect((await listing).done).toBe(true);
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold)).session, done());
    await holding;
  });

  test("fails when the agent refuses it, and delays nothing", async () => {
    const { guest, agent } = open();
    const holding = failure(agent.hold());
    guest.send(AgentFrame.error, (await guest.frame(HostFrame.hold)).session, problem(16, "busy"));
    expect(((await holding) as AgentError).errno).toBe(16);
    const frozen = agent.freeze();
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.freeze)).session, done());
    await frozen;
  });

  test("ends by a SYNC, even when it was not answered", async () => {
    const { guest, agent } = open();
    const holding = agent.hold();
    const hold = await guest.frame(HostFrame.hold);
    const synced = agent.sync({ realtimeNs: 1n, entropy });
    guest.send(AgentFrame.done, hold.session, done());
    await answerSync(guest);
    await Promise.all([holding, synced]);
  });

  test("whose caller stops waiting before it is sent holds nothing", async () => {
    const { guest, agent } = open();
    const listing = agent.index(0).next();
    const index = await guest.frame(HostFrame.index);
    expect((await failure(agent.hold(AbortSignal.timeout(1)))).name).toBe("TimeoutError");
    expect(agent.isHeld).toBe(false);
    guest.send(AgentFrame.done, index.session, done());
    expect((await listing).done).toBe(true);
    const synced = agent.sync({ realtimeNs: 1n, entropy });
    await answerSync(guest);
    await synced;
    expect(guest.frames.some(({ type }) => type === HostFrame.hold)).toBe(false);
  });

  test("whose caller stops waiting for the answer stays until the SYNC", async () => {
    const { guest, agent } = open();
    const gone = new AbortController();
    const holding = failure(agent.hold(gone.signal));
    const hold = await guest.frame(HostFrame.hold);
    gone.abort(new Error("not wanted"));
    expect((await holding).message).toBe("not wanted");
    expect(agent.isHeld).toBe(true);
    const synced = agent.sync({ realtimeNs: 1n, entropy });
    guest.send(AgentFrame.done, hold.session, done());
    await answerSync(guest);
    await synced;
    expect(agent.isHeld).toBe(false);
  });

  test.each([
    ["output", 1, AgentFrame.output, packIntegers([32, Stream.stdout])],
    ["a line for the log", 0, AgentFrame.log, text("line")],
  ])("%s during it breaks the protocol", async (_, session, type, payload) => {
    const { guest, agent, lines } = open();
    const run = agent.exec(SPEC, () => undefined);
    await guest.frame(HostFrame.execSpec);
    const holding = agent.hold();
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold)).session, done());
    await holding;
    guest.send(type, session, payload);
    expect(await failure(run.exit)).toBeInstanceOf(AgentProtocolError);
    expect(lines).toEqual([]);
    // A SYNC cannot arrive any more, so the next request does not wait for one.
    expect(await failure(agent.freeze())).toBeInstanceOf(AgentProtocolError);
  });
});

describe("a frozen scratch", () => {
  async function quiesced() {
    const { guest, agent } = open();
    const opening = agent.quiesce(5000);
    const { session, payload } = await guest.frame(HostFrame.quiesce);
    expect(payload).toEqual(Buffer.from([0x88, 0x13, 0, 0]));
    guest.send(AgentFrame.quiesced, session);
    return { guest, agent, session, still: await opening };
  }

  test("is thawed once, and returns how long it was frozen", async () => {
    const { guest, session, still } = await quiesced();
    const [first, second] = [still.thaw(), still.thaw()];
    await guest.frame(HostFrame.thaw);
    guest.send(AgentFrame.done, session, done(7n));
    expect([await first, await second, await still.thaw()]).toEqual([7n, 7n, 7n]);
    await still[Symbol.asyncDispose]();
    expect(guest.frames.filter(({ type }) => type === HostFrame.thaw)).toHaveLength(1);
  });

  test("reports at its thaw that the guest thawed it", async () => {
    const { guest, session, still } = await quiesced();
    guest.send(AgentFrame.error, session, problem(110, "the time was up"));
    expect(((await failure(still.thaw())) as AgentError).errno).toBe(110);
    await still[Symbol.asyncDispose]();
    expect(guest.frames.some(({ type }) => type === HostFrame.thaw)).toBe(false);
  });

  test("fails when the guest cannot freeze it", async () => {
    const { guest, agent } = open();
    const opening = failure(agent.quiesce(1));
    guest.send(AgentFrame.error, (await guest.frame(HostFrame.quiesce)).session, problem(16, "busy"));
    expect(((await opening) as AgentError).errno).toBe(16);
  });

  test.each([
    ["a second time", AgentFrame.quiesced, NOTHING],
    ["output", AgentFrame.output, packIntegers([32, 1])],
    ["a short end", AgentFrame.done, Buffer.alloc(7)],
  ])("%s breaks the protocol", async (_, type, payload) => {
    const { guest, session, still } = await quiesced();
    guest.send(type, session, payload);
    expect(await failure(still.thaw())).toBeInstanceOf(AgentProtocolError);
  });

  test("cannot be thawed before it is frozen", async () => {
    const { guest, agent } = open();
    const opening = failure(agent.quiesce(1));
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.quiesce)).session, done());
    expect(await opening).toBeInstanceOf(AgentProtocolError);
  });
});

describe("standard input with initial content", () => {
  test("continues with later writes, and ends when it is closed", async () => {
    const { guest, agent } = open();
    const first = Promise.withResolvers<Uint8Array>();
    const begin = async function* () {
      yield text("a");
      yield await first.promise;
    };
    const run = agent.exec({ ...SPEC, stdin: { first: begin() } }, () => undefined);
    const { session, payload } = await guest.frame(HostFrame.execOpen);
    expect(payload.readUInt32LE(4)).toBe(ExecFlag.stdin);
    guest.send(AgentFrame.started, session, packIntegers([32, 2]));
    const written = run.write(text("c"));
    const ended = run.end();
    await guest.frame(HostFrame.stdin);
    first.resolve(text("b"));
    expect(await written).toBe(true);
    await ended;
    const sent = guest.frames.filter(({ type }) => type === HostFrame.stdin).map((frame) => frame.payload.toString());
    expect(sent).toEqual(["a", "b", "c", ""]);
  });
});

describe("a command with a terminal, in the session of another", () => {
  test("carries the other session, its user and the terminal's size", async () => {
    const { guest, agent } = open();
    const main = agent.exec(SPEC, () => undefined);
    const first = await guest.frame(HostFrame.execOpen);
    const spec = { ...SPEC, timeoutMs: 0, user: { uid: 1, gid: 2 }, terminal: { rows: 3, columns: 4 } };
    const run = agent.exec(spec, () => undefined, { target: main });
    await turns();
    // There is no process to join yet.
    expect(guest.frames.filter(({ type }) => type === HostFrame.execOpen)).toHaveLength(1);
    guest.send(AgentFrame.started, first.session, packIntegers([32, 2]));
    const { session, payload } = await guest.frame(HostFrame.execOpen, 1);
    const rest = [[64, 0] as const, [32, first.session] as const, [32, 1] as const, [32, 2] as const];
    expect(payload.subarray(4)).toEqual(Buffer.from(packIntegers([32, 2], ...rest, [16, 3], [16, 4], [32, 0])));
    await guest.frame(HostFrame.execSpec, 1);
    run.resize({ rows: 50, columns: 132 });
    expect((await guest.frame(HostFrame.resize)).payload).toEqual(Buffer.from([50, 0, 132, 0]));
    run.limit(70_000);
    expect((await guest.frame(HostFrame.limit)).payload).toEqual(Buffer.from(packIntegers([64, 70_000])));
    await run.end();
    expect((await guest.frame(HostFrame.stdin)).payload.byteLength).toBe(0);
    guest.send(AgentFrame.exit, session, exitPayload(0));
    await run.exit;
    run.resize({ rows: 1, columns: 1 });
    run.limit(1);
    expect(await run.write(text("x"))).toBe(false);
    expect(guest.frames.filter(({ type }) => type === HostFrame.resize)).toHaveLength(1);
    expect(guest.frames.filter(({ type }) => type === HostFrame.limit)).toHaveLength(1);
  });

  test("fails when the other command fails", async () => {
    const { guest, agent } = open();
    const main = agent.exec(SPEC, () => undefined);
    const run = agent.exec(SPEC, () => undefined, { target: main });
    guest.send(AgentFrame.error, (await guest.frame(HostFrame.execOpen)).session, problem(2, "no"));
    expect(await failure(run.exit)).toBeInstanceOf(AgentError);
    expect(await run.write(text("x"))).toBe(false);
    expect(guest.frames.filter(({ type }) => type === HostFrame.execOpen)).toHaveLength(1);
  });
});
