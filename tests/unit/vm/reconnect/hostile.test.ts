/** A guest that owns its agent, when the next host comes, and during a hold. */
import { expect, test } from "bun:test";
import { AgentClosedError, AgentError, AgentProtocolError } from "../../../../src/vm/agent/agent.ts";
import { encodeFrame, packIntegers } from "../../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  FRAME_PAYLOAD_BYTES_MAX,
  HostFrame,
  SESSION_GUEST_BIT,
  SessionFlag,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "../../../../src/vm/agent/protocol.ts";
import { done, exitPayload, failure, openAgent, SPEC } from "../../../support/guests/agent-script.ts";
import { type Listed, resumed, sendHello } from "../../../support/guests/reconnecting-agent.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";
import { turns } from "../../../support/waiting.ts";

const ROUNDS_COUNT = 300;
const FRAMES_COUNT_MAX = 60;
const TYPES = Object.values(AgentFrame);
const NUMBERS = [0, 1, 2, 3, 4, 7, 8, 255, 65_535, 65_536, WINDOW_BYTES_INITIAL, 0x7fff_ffff, 0xffff_ffff];

test("random frames end the stream, and no output reaches another process or exceeds its credit", async () => {
  const random = seededRandom(seedOfTests());
  const pick = <T>(values: readonly T[]): T => values[random.below(values.length)] as T;
  for (let round = 0; round < ROUNDS_COUNT; round++) {
    const from = 5 + random.below(1000);
    const sessions: Listed[] = [3, 4, 5].map((id) => ({
      ...{ id, tag: id, stdoutFrom: from, stderrFrom: from },
      flags: SessionFlag.started | (random.below(4) === 0 ? SessionFlag.finished : 0),
    }));
    const { guest, agent, sessions: reports } = await resumed(sessions);
    const got = new Map<number, number>();
    const never = new Promise<void>(() => undefined);
    const ends = reports.map((report) => {
      const onOutput = (_stream: string, chunk: Uint8Array) => {
        // Each session's output has its own byte.
        expect(chunk.every((byte) => byte === report.session)).toBe(true);
        got.set(report.session, (got.get(report.session) ?? 0) + chunk.byteLength);
        return never;
      };
      const logged = { stdout: from + random.below(100), stderr: from };
      let exitsCount = 0;
      const onExit = () => {
        exitsCount += 1;
        expect(exitsCount).toBe(1);
        return random.below(2) === 0 ? never : undefined;
      };
      return agent.attach(report, { onOutput, onExit, logged }).exit.catch((error: unknown) => error);
    });
    agent.proceed();
    for (let count = random.below(FRAMES_COUNT_MAX); count > 0; count--) {
      const session = pick([0, 3, 4, 5, 5, 6, SESSION_GUEST_BIT, SESSION_GUEST_BIT + 1, 0xffff_ffff]);
      const type = random.below(3) === 0 ? pick(TYPES) : AgentFrame.output;
      if (type === AgentFrame.output) {
        const size = pick([1, 2, 100, FRAME_PAYLOAD_BYTES_MAX - 4]);
        const stream = random.below(20) === 0 ? pick(NUMBERS) : pick([Stream.stdout, Stream.stderr]);
        guest.send(type, session, packIntegers([32, stream]), Buffer.alloc(size, session));
      } else if (type === AgentFrame.exit && random.below(2) === 0) guest.send(type, session, exitPayload(0));
      else {
        const words = Array.from({ length: random.below(8) }, () => packIntegers([32, pick(NUMBERS)]));
        guest.send(type, session, ...words);
      }
    }
    await turns(3);
    guest.channel.deliver(null);
    for (const end of await Promise.all(ends)) {
      const isExpected = [AgentProtocolError, AgentClosedError, AgentError].some((kind) => end instanceof kind);
      expect(isExpected || (end as { exitCode?: number }).exitCode !== undefined).toBe(true);
    }
    for (const bytes of got.values()) expect(bytes).toBeLessThanOrEqual(2 * WINDOW_BYTES_INITIAL);
    // A guest causes no more frames than its sessions have.
    expect(guest.frames.length).toBeLessThan(20);
  }
});

test.each<[string, (send: (type: number, session: number, ...payload: Uint8Array[]) => void) => void]>([
  ["an EXIT twice", (send) => [1, 2].forEach(() => void send(AgentFrame.exit, 3, exitPayload(0)))],
  [
    "output behind the EXIT",
    (send) => {
      send(AgentFrame.exit, 3, exitPayload(0));
      send(AgentFrame.output, 3, packIntegers([32, Stream.stdout]), Buffer.from("late"));
    },
  ],
  [
    "output of a session that it did not list",
    (send) => send(AgentFrame.output, 9, packIntegers([32, 1]), Buffer.from("x")),
  ],
  ["output without bytes", (send) => send(AgentFrame.output, 3, packIntegers([32, Stream.stdout]))],
  ["a second start", (send) => send(AgentFrame.started, 3, packIntegers([32, 8]))],
  ["a second greeting", (send) => send(AgentFrame.hello, 0, packIntegers([32, 5], [32, 0]), Buffer.from("x"))],
  ["a second report", (send) => send(AgentFrame.resumed, 0, packIntegers([64, 0], [32, 0], [32, 0]))],
  ["a connection with a used number", (send) => send(AgentFrame.netData, SESSION_GUEST_BIT, Buffer.from("x"))],
])("%s closes the stream of an agent that was resumed", async (_, lie) => {
  const { guest, agent, sessions } = await resumed([{ id: 3 }]);
  const seen: string[] = [];
  const onOutput = (_stream: string, chunk: Uint8Array) => void seen.push(Buffer.from(chunk).toString());
  const [report] = sessions;
  if (report === undefined) throw new Error("no session is listed");
  agent.attach(report, { onOutput, logged: { stdout: 0, stderr: 0 }, onExit: () => new Promise(() => undefined) });
  agent.proceed();
  lie((type, session, ...payload) => guest.send(type, session, ...payload));
  expect(await failure(agent.flush())).toBeInstanceOf(AgentProtocolError);
  expect(seen).toEqual([]);
  expect(guest.channel.paused).toBe(true);
});

test.each<[string, (type: number) => Uint8Array]>([
  ["output", () => encodeFrame(AgentFrame.output, 1, packIntegers([32, Stream.stdout]), Buffer.from("x"))],
  ["an end", () => encodeFrame(AgentFrame.exit, 1, exitPayload(0))],
  ["a line for the log", () => encodeFrame(AgentFrame.log, 0, Buffer.from("x"))],
  ["a request", () => encodeFrame(AgentFrame.resolve, 1, packIntegers([16, 1]), Buffer.from("example.com"))],
  ["half a frame", () => Buffer.from([1, 0, 0])],
])("%s in the same chunk as the answer to HOLD makes no record", async (_, more) => {
  const { guest, agent } = openAgent();
  sendHello(guest);
  const handle = agent.exec(SPEC, () => undefined);
  const { session } = await guest.frame(HostFrame.execOpen);
  guest.send(AgentFrame.started, session, packIntegers([32, 1]));
  await handle.started;
  const held = agent.hold().catch((error: unknown) => error);
  const hold = await guest.frame(HostFrame.hold);
  guest.channel.deliver(Buffer.concat([encodeFrame(AgentFrame.done, hold.session, done()), more(0)]));
  await held;
  expect(() => agent.record()).toThrow("the stream is not held");
});
