/** A host that comes after another one, against scripted agents. */
import { afterEach, beforeEach, describe, expect, jest, test } from "bun:test";
import { AgentClosedError, AgentProtocolError } from "../../../../src/vm/agent/agent.ts";
import { AgentVersionError } from "../../../../src/vm/agent/errors.ts";
import { encodeFrame, packIntegers } from "../../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  DisksState,
  HostFrame,
  INPUT_WINDOW_BYTES_MAX,
  PROCESSES_COUNT_MAX,
  PROTOCOL_VERSION,
  SESSION_GUEST_BIT,
  SessionFlag,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "../../../../src/vm/agent/protocol.ts";
import { failure, problem, text } from "../../../support/guests/agent-script.ts";
import {
  type Listed,
  reconnecting,
  resumed,
  sendHello,
  sendResumed,
} from "../../../support/guests/reconnecting-agent.ts";
import type { ScriptedAgent } from "../../../support/guests/scripted-peer.ts";
import { turns } from "../../../support/waiting.ts";

const silent = () => undefined;
/** An agent that greets, and then lists these sessions. */
const honest =
  (...sessions: Listed[]) =>
  (guest: ScriptedAgent) => {
    sendHello(guest);
    void sendResumed(guest, { sessions });
  };

describe("the greeting of the next host", () => {
  beforeEach(() => void jest.useFakeTimers());
  afterEach(() => void jest.useRealTimers());

  /** Lets the waits of the host end, one after another. */
  async function elapse(milliseconds: number): Promise<void> {
    for (let passedMs = 0; passedMs < milliseconds; passedMs += 50) {
      for (let count = 0; count < 50; count++) await undefined;
      jest.advanceTimersByTime(50);
    }
    for (let count = 0; count < 50; count++) await undefined;
  }

  test("comes before RESUME, however late it is", async () => {
    const { guests, reconnected } = reconnecting([silent]);
    await elapse(450);
    expect(guests[0]?.frames).toEqual([]);
    honest()(guests[0] as ScriptedAgent);
    const { disks, sessions } = await reconnected;
    expect([disks, sessions, guests.length]).toEqual([DisksState.root, [], 1]);
    expect(guests[0]?.frames.map(({ type }) => type)).toEqual([HostFrame.resume]);
  });

  test.each([
    ["silence", silent],
    ["a stream that closes", (guest: ScriptedAgent) => guest.channel.deliver(null)],
    ["output", (guest: ScriptedAgent) => guest.send(AgentFrame.output, 3, packIntegers([32, 1]), text("more"))],
    ["the end of half a frame", (guest: ScriptedAgent) => guest.channel.deliver(Buffer.alloc(100, "y"))],
    [
      "lines for the log without end",
      (guest: ScriptedAgent) => {
        sendHello(guest);
        guest.channel.deliver(Buffer.concat(Array(1000).fill(encodeFrame(AgentFrame.log, 0, text("x")))));
      },
    ],
    [
      "the answer to another RESUME",
      (guest: ScriptedAgent) => {
        sendHello(guest);
        void sendResumed(guest, { sessions: [], off: 1n });
      },
    ],
    [
      "another greeting",
      (guest: ScriptedAgent) => {
        sendHello(guest);
        sendHello(guest);
      },
    ],
  ])("%s in its place means that the stream must be opened again", async (_, play) => {
    const { guests, reconnected } = reconnecting([play, play, honest({ id: 4 })]);
    await elapse(2500);
    expect((await reconnected).sessions.map(({ session }) => session)).toEqual([4]);
    expect(guests.length).toBe(3);
    // No frame reached an agent that had not greeted.
    for (const { frames } of guests) expect(frames.every(({ type }) => type === HostFrame.resume)).toBe(true);
    const nonces = guests.flatMap(({ frames }) => frames.map(({ payload }) => payload.readBigUInt64LE(8)));
    expect(new Set(nonces).size).toBe(nonces.length);
  });

  test("is waited for longer each time, and not for ever", async () => {
    const { guests, reconnected } = reconnecting([]);
    const failed = failure(reconnected);
    const opened: number[] = [];
    for (let passedMs = 0; passedMs <= 4000; passedMs += 50) {
      if (guests.length > opened.length) opened.push(passedMs);
      await elapse(50);
    }
    expect(await failed).toBeInstanceOf(AgentClosedError);
    expect(opened).toEqual([0, 550, 1650]);
  });

  test("ends with the reason of the signal", async () => {
    const leaving = new AbortController();
    const { reconnected } = reconnecting([], { signal: leaving.signal });
    const failed = failure(reconnected);
    await elapse(100);
    leaving.abort(new Error("enough"));
    expect((await failed).message).toBe("enough");
  });
});

test.each([
  ["a greeting", (guest: ScriptedAgent) => sendHello(guest, PROTOCOL_VERSION - 1)],
  [
    "an error",
    (guest: ScriptedAgent) => {
      sendHello(guest);
      guest.send(AgentFrame.error, 0, problem(71, "host speaks protocol 6, agent 5"));
    },
  ],
])("%s of another version ends the attempts", async (_, play) => {
  const { guests, reconnected } = reconnecting([play]);
  expect(await failure(reconnected)).toBeInstanceOf(AgentVersionError);
  expect(guests.length).toBe(1);
});

test("lines for the log may come before the answer", async () => {
  const { guests, reconnected } = reconnecting([
    (guest) => {
      sendHello(guest);
      guest.send(AgentFrame.log, 0, text("late"));
      void sendResumed(guest, { sessions: [] });
    },
  ]);
  expect((await reconnected).sessions).toEqual([]);
  expect(guests.length).toBe(1);
});

describe("the list of sessions", () => {
  test("is read", async () => {
    const flags = SessionFlag.started | SessionFlag.finished | SessionFlag.terminal | SessionFlag.linger;
    const first = { id: 9, flags, pid: 77, tag: 3, stdinTaken: 12, stdinCredit: 34, stdoutFrom: 5, stderrFrom: 6 };
    const second = { id: 2, target: 9, flags: SessionFlag.stdin | SessionFlag.stdinEnded | SessionFlag.idle, pid: 0 };
    const { agent, disks, sessions } = await resumed([{ ...first, ranMs: 8, kept: 4, limitMs: 0 }, second]);
    expect(await agent.hello(AbortSignal.timeout(1000))).toMatchObject({ kernelRelease: "6.1.0" });
    expect(disks).toBe(DisksState.root);
    expect(sessions).toEqual([
      {
        session: 9,
        spid: 3,
        target: 0,
        started: true,
        finished: true,
        pid: 77,
        hasTerminal: true,
        isIdle: false,
        lingers: true,
        hasInput: false,
        inputEnded: false,
        stdinTakenBytes: 12,
        stdinCreditBytes: 34,
        keptFrom: { stdout: 5, stderr: 6 },
        keptBytes: 4,
        ranMs: 8,
        limitMs: 0,
      },
      expect.objectContaining({ session: 2, target: 9, started: false, pid: null, isIdle: true, inputEnded: true }),
    ]);
  });

  test("may have as many sessions as a guest can have, and the next request gets another id", async () => {
    const sessions = Array.from({ length: PROCESSES_COUNT_MAX }, (_, index) => ({ id: 100 + index, tag: index }));
    const result = await resumed(sessions);
    expect(result.sessions.length).toBe(PROCESSES_COUNT_MAX);
    void result.agent.flush().catch(() => undefined);
    expect((await result.guest.frame(HostFrame.flush)).session).toBe(100 + PROCESSES_COUNT_MAX);
  });

  const tooMany = Array.from({ length: PROCESSES_COUNT_MAX + 1 }, (_, index) => ({ id: 1 + index }));
  test.each<[string, { sessions: readonly Listed[]; disks?: number; count?: number }]>([
    ["two sessions with one id", { sessions: [{ id: 5 }, { id: 6 }, { id: 5 }] }],
    [
      "two sessions with one number",
      {
        sessions: [
          { id: 5, tag: 2 },
          { id: 6, tag: 2 },
        ],
      },
    ],
    ["more sessions than a guest can have", { sessions: tooMany }],
    ["fewer sessions than announced", { sessions: [{ id: 5 }], count: 2 }],
    ["more sessions than announced", { sessions: [{ id: 5 }], count: 0 }],
    ["sessions without number", { sessions: [], count: 0xffff_ffff }],
    ["an unknown state of the disks", { sessions: [], disks: 5 }],
    ["the id of the stream", { sessions: [{ id: 0 }] }],
    ["an id of the guest's", { sessions: [{ id: SESSION_GUEST_BIT }] }],
    ["a target of the guest's", { sessions: [{ id: 5, target: SESSION_GUEST_BIT }] }],
    ["a session in its own namespaces", { sessions: [{ id: 5, target: 5 }] }],
    ["an unknown flag", { sessions: [{ id: 5, flags: 129 }] }],
    ["a reserve", { sessions: [{ id: 5, zero: 1 }] }],
    ["a start without a pid", { sessions: [{ id: 5, pid: 0 }] }],
    ["a pid without a start", { sessions: [{ id: 5, flags: SessionFlag.stdin }] }],
    ["more credit than there can be", { sessions: [{ id: 5, stdinCredit: INPUT_WINDOW_BYTES_MAX + 1 }] }],
    ["more output than a window", { sessions: [{ id: 5, kept: 2 * WINDOW_BYTES_INITIAL + 1 }] }],
    ["a position that no number has", { sessions: [{ id: 5, stdoutFrom: 1n << 60n }] }],
    ["a time that no number has", { sessions: [{ id: 5, ranMs: 1n << 63n }] }],
  ])("with %s ends the attempts", async (_, answer) => {
    const play = (guest: ScriptedAgent) => {
      sendHello(guest);
      void sendResumed(guest, answer);
    };
    const { guests, reconnected } = reconnecting([play]);
    expect(await failure(reconnected)).toBeInstanceOf(AgentProtocolError);
    await turns();
    // It is the agent, and it lies: another attempt would be useless.
    expect(guests.length).toBe(1);
  });

  test("arrives in any pieces, and what follows it is not lost", async () => {
    for (const pieceBytes of [1, 5, 12, 13, 64, 1000]) {
      const { guests, reconnected } = reconnecting([sendHello]);
      const [guest] = guests;
      if (guest === undefined) throw new Error("no agent was connected to");
      const deliver = guest.channel.deliver.bind(guest.channel);
      const chunks: Uint8Array[] = [];
      guest.channel.deliver = (chunk) => void chunks.push(chunk ?? new Uint8Array());
      await sendResumed(guest, { sessions: [{ id: 5 }] });
      chunks.push(encodeFrame(AgentFrame.output, 5, packIntegers([32, Stream.stdout]), text("behind it")));
      const bytes = Buffer.concat(chunks);
      for (let at = 0; at < bytes.length; at += pieceBytes) deliver(bytes.subarray(at, at + pieceBytes));
      const { agent, sessions } = await reconnected;
      const seen: string[] = [];
      const onOutput = (stream: string, chunk: Uint8Array) => void seen.push(`${stream} ${Buffer.from(chunk)}`);
      for (const report of sessions) agent.attach(report, { onOutput, logged: { stdout: 0, stderr: 0 } });
      await turns();
      expect(seen).toEqual([]);
      agent.proceed();
      await turns();
      expect(seen.map((line) => line.replace("stdout ", "")).join("")).toBe("behind it");
    }
  });
});
