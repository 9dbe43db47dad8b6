/** Commands that the next host continues with, against scripted agents. */
import { describe, expect, test } from "bun:test";
import { AgentClosedError, AgentProtocolError } from "../../../../src/vm/agent/agent.ts";
import { OutputGapError } from "../../../../src/vm/agent/errors.ts";
import { packIntegers } from "../../../../src/vm/agent/frames.ts";
import type { GuestNetwork } from "../../../../src/vm/agent/guest-network.ts";
import type { AttachedEnds } from "../../../../src/vm/agent/process.ts";
import {
  AgentFrame,
  HostFrame,
  INPUT_WINDOW_BYTES_INITIAL,
  KEEP_BYTES_MIN,
  SessionFlag,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "../../../../src/vm/agent/protocol.ts";
import { done, exitPayload, failure, openAgent, SPEC } from "../../../support/guests/agent-script.ts";
import { FIRST, GuestRequests, openConnection } from "../../../support/guests/guest-requests.ts";
import { type Listed, resumed } from "../../../support/guests/reconnecting-agent.ts";
import type { ScriptedAgent } from "../../../support/guests/scripted-peer.ts";
import { seededRandom, seedOfTests } from "../../../support/random.ts";
import { turns } from "../../../support/waiting.ts";

const NOTHING_LOGGED = { stdout: 0, stderr: 0 };
const typesOf = ({ frames }: ScriptedAgent) =>
  frames.map(({ type }) => type).filter((type) => type !== HostFrame.resume);

/** A host that has attached to the one command that the agent lists. */
async function attached(listed: Listed, ends: Partial<AttachedEnds> = {}) {
  const output = { stdout: "", stderr: "" };
  const { guest, agent, sessions } = await resumed([listed]);
  const [report] = sessions;
  if (report === undefined) throw new Error("no session is listed");
  const onOutput: AttachedEnds["onOutput"] = (stream, chunk) => {
    output[stream] += Buffer.from(chunk).toString("latin1");
    return undefined;
  };
  const handle = agent.attach(report, { onOutput, logged: NOTHING_LOGGED, ...ends });
  agent.proceed();
  const send = (stream: number, bytes: Uint8Array) =>
    guest.send(AgentFrame.output, listed.id, packIntegers([32, stream]), bytes);
  return { guest, agent, handle, output, send };
}

describe("output", () => {
  test("is passed on from the end of the log on, wherever the agent begins and divides it", async () => {
    const random = seededRandom(seedOfTests());
    const text = Buffer.from(Array.from({ length: 64 }, () => 97 + random.below(26)));
    for (let kept = 0; kept <= 24; kept += 4) {
      for (let logged = kept; logged <= text.length; logged++) {
        const positions = { stdoutFrom: kept, stderrFrom: kept };
        const ends = { logged: { stdout: logged, stderr: kept } };
        const { output, send } = await attached({ id: 3, ...positions }, ends);
        for (let at = kept; at < text.length; ) {
          const next = Math.min(text.length, at + 1 + random.below(20));
          for (const stream of [Stream.stdout, Stream.stderr]) send(stream, text.subarray(at, next));
          at = next;
        }
        expect(output).toEqual({
          stdout: text.subarray(logged).toString(),
          stderr: text.subarray(kept).toString(),
        });
      }
    }
  });

  test("that the log has is granted at once, and other output when it is stored", async () => {
    const stored = Promise.withResolvers<void>();
    const half = KEEP_BYTES_MIN / 2;
    const { guest, send } = await attached(
      { id: 3, stdoutFrom: 1000 },
      { logged: { stdout: 1000 + half, stderr: 0 }, onOutput: () => stored.promise },
    );
    send(Stream.stdout, Buffer.alloc(half));
    await turns();
    expect(typesOf(guest)).toEqual([HostFrame.window]);
    send(Stream.stdout, Buffer.alloc(half));
    await turns();
    expect(typesOf(guest)).toEqual([HostFrame.window]);
    stored.resolve();
    await turns();
    expect(typesOf(guest)).toEqual([HostFrame.window, HostFrame.window]);
  });

  test("may be as much as a window from the first byte that was kept on, and no more", async () => {
    const logged = { stdout: 300 + WINDOW_BYTES_INITIAL, stderr: 0 };
    const never = new Promise<void>(() => undefined);
    const { agent, send } = await attached({ id: 3, stdoutFrom: 300 }, { logged, onOutput: () => never });
    for (let bytes = 0; bytes < WINDOW_BYTES_INITIAL; bytes += 32_768) send(Stream.stdout, Buffer.alloc(32_768));
    for (let bytes = 0; bytes < WINDOW_BYTES_INITIAL; bytes += 32_768) send(Stream.stderr, Buffer.alloc(32_768));
    send(Stream.stderr, Buffer.alloc(1));
    expect(await failure(agent.flush())).toBeInstanceOf(AgentProtocolError);
  });

  test("that the agent has forgotten must be in the log", async () => {
    const { agent, sessions } = await resumed([{ id: 3, stdoutFrom: 5, stderrFrom: 5 }]);
    const [report] = sessions;
    if (report === undefined) throw new Error("no session is listed");
    const attach = (logged: AttachedEnds["logged"]) =>
      failure((async () => agent.attach(report, { onOutput: () => undefined, logged }))());
    for (const logged of [
      { stdout: 4, stderr: 5 },
      { stdout: 5, stderr: 4 },
    ]) {
      expect(await attach(logged)).toBeInstanceOf(OutputGapError);
    }
    const ahead = { stdout: 6 + WINDOW_BYTES_INITIAL, stderr: 5 };
    expect(await attach(ahead)).toBeInstanceOf(AgentProtocolError);
    agent.attach(report, { onOutput: () => undefined, logged: report.keptFrom });
    // Once only.
    expect(await attach(report.keptFrom)).toBeInstanceOf(Error);
  });
});

describe("a start", () => {
  test("is reported at once, or when it happens", async () => {
    const pids: number[] = [];
    const onStart = (pid: number) => void pids.push(pid);
    const { handle } = await attached({ id: 3, pid: 9 }, { onStart });
    await handle.started;
    expect(pids).toEqual([9]);
    const later = await attached({ id: 3, pid: 0, flags: SessionFlag.stdin }, { onStart });
    await turns();
    expect(pids).toEqual([9]);
    later.guest.send(AgentFrame.started, 3, packIntegers([32, 11]));
    await later.handle.started;
    expect(pids).toEqual([9, 11]);
  });

  test("is not reported twice by an honest agent", async () => {
    const { guest, handle } = await attached({ id: 3, pid: 9 });
    guest.send(AgentFrame.started, 3, packIntegers([32, 9]));
    expect(await failure(handle.exit)).toBeInstanceOf(AgentProtocolError);
  });
});

describe("standard input", () => {
  const written = (guest: ScriptedAgent) =>
    guest.frames.filter(({ type }) => type === HostFrame.stdin).map(({ payload }) => payload.toString());

  test("continues where the agent has got to, with the credit that is left", async () => {
    const { guest, handle } = await attached({ id: 3, stdinTaken: 1000, stdinCredit: 4 });
    expect(handle.inputPosition).toBe(1000);
    const write = handle.write(Buffer.from("abcdef"));
    await turns();
    expect([written(guest), handle.inputPosition]).toEqual([["abcd"], 1004]);
    guest.send(AgentFrame.window, 3, packIntegers([32, Stream.stdin], [32, INPUT_WINDOW_BYTES_INITIAL]));
    expect(await write).toBe(true);
    await handle.end();
    expect([written(guest), handle.inputPosition]).toEqual([["abcd", "ef", ""], 1006]);
  });

  test("begins with the rest of the first input, and then ends or stays open", async () => {
    for (const keepsInput of [false, true]) {
      const first = [Buffer.from("rest")];
      const { guest, handle } = await attached({ id: 3, stdinTaken: 9 }, { first, keepsInput });
      const later = handle.write(Buffer.from("later"));
      expect(await later).toBe(keepsInput);
      expect(written(guest)).toEqual(keepsInput ? ["rest", "later"] : ["rest", ""]);
    }
  });

  test("that an earlier host has ended, or that never was, takes nothing", async () => {
    for (const flags of [SessionFlag.started, SessionFlag.started | SessionFlag.stdin | SessionFlag.stdinEnded]) {
      const { guest, handle } = await attached({ id: 3, flags });
      expect(await handle.write(Buffer.from("x"))).toBe(false);
      await handle.end();
      expect(written(guest)).toEqual([]);
    }
  });
});

describe("an end", () => {
  test("comes after the output, and FORGET when it is stored", async () => {
    const stored = Promise.withResolvers<void>();
    const seen: string[] = [];
    const { guest, agent, handle } = await attached(
      { id: 3, flags: SessionFlag.started | SessionFlag.finished },
      {
        onOutput: (_, chunk) => void seen.push(Buffer.from(chunk).toString()),
        onExit: ({ exitCode }) => {
          seen.push(`exit ${exitCode}`);
          return stored.promise;
        },
      },
    );
    guest.send(AgentFrame.output, 3, packIntegers([32, Stream.stdout]), Buffer.from("last"));
    guest.send(AgentFrame.exit, 3, exitPayload(4));
    expect((await handle.exit).exitCode).toBe(4);
    const frozen = agent.freeze();
    await turns();
    expect([seen, typesOf(guest)]).toEqual([["last", "exit 4"], []]);
    stored.resolve();
    const { session } = await guest.frame(HostFrame.freeze);
    // The agent counts a session until FORGET, so FREEZE comes after it.
    expect(typesOf(guest)).toEqual([HostFrame.forget, HostFrame.freeze]);
    expect(guest.frames.find(({ type }) => type === HostFrame.forget)?.session).toBe(3);
    guest.send(AgentFrame.done, session, done());
    await frozen;
  });

  test("is the last frame of a session", async () => {
    const { guest, agent, handle, send } = await attached({ id: 3 }, { onExit: () => new Promise(() => undefined) });
    guest.send(AgentFrame.exit, 3, exitPayload(0));
    await handle.exit;
    send(Stream.stdout, Buffer.from("x"));
    expect(await failure(agent.flush())).toBeInstanceOf(AgentProtocolError);
  });

  test("that is not stored takes the place of a process, and is forgotten by those who continue from a record", async () => {
    const { guest, agent } = openAgent();
    const run = agent.exec(SPEC, () => undefined, { onExit: () => new Promise(() => undefined) });
    const { session } = await guest.frame(HostFrame.execSpec);
    guest.send(AgentFrame.started, session, packIntegers([32, 5]));
    guest.send(AgentFrame.exit, session, exitPayload(0));
    await run.exit;
    const holding = agent.hold();
    guest.send(AgentFrame.done, (await guest.frame(HostFrame.hold)).session, done());
    await holding;
    const { processes, frames } = agent.record();
    expect([processes, frames]).toEqual([[], [{ type: HostFrame.forget, session, payload: "" }]]);
  });
});

describe("sessions that the host does not attach to", () => {
  test("are killed, and forgotten when they have ended", async () => {
    const { guest, agent } = await resumed([
      { id: 3, tag: 1 },
      { id: 4, tag: 2, pid: 0, flags: 0 },
      { id: 5, tag: 3, flags: SessionFlag.started | SessionFlag.finished },
    ]);
    agent.proceed();
    await turns();
    const signals = () => guest.frames.filter(({ type }) => type === HostFrame.signal);
    expect(signals().map(({ session, payload }) => [session, payload.readUInt32LE()])).toEqual([[3, 9]]);
    guest.send(AgentFrame.started, 4, packIntegers([32, 8]));
    await turns();
    expect(signals().map(({ session }) => session)).toEqual([3, 4]);
    for (const session of [3, 4, 5]) {
      guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), Buffer.alloc(40_000));
      guest.send(AgentFrame.exit, session, exitPayload(137));
    }
    await turns();
    const of = (kind: number) => guest.frames.filter(({ type }) => type === kind).map(({ session }) => session);
    expect([of(HostFrame.window), of(HostFrame.forget)]).toEqual([
      [3, 4, 5],
      [3, 4, 5],
    ]);
  });

  test("hold back a freeze, which the agent refuses while one of them is there", async () => {
    const flags = SessionFlag.started | SessionFlag.finished;
    const { guest, agent } = await resumed([{ id: 3 }, { id: 5, flags }]);
    agent.proceed();
    const frozen = agent.freeze();
    await turns();
    expect(typesOf(guest)).not.toContain(HostFrame.freeze);
    for (const id of [5, 3]) {
      guest.send(AgentFrame.exit, id, exitPayload(137));
      await turns();
    }
    const forgets = typesOf(guest).filter((type) => type === HostFrame.forget);
    expect([forgets.length, typesOf(guest).at(-1)]).toEqual([2, HostFrame.freeze]);
    const freeze = await guest.frame(HostFrame.freeze);
    guest.send(AgentFrame.done, freeze.session, done());
    await frozen;
  });
});

test("the guest's requests are answered by the given network, or refused", async () => {
  for (const network of [new GuestRequests(), null]) {
    const { guest, agent } = await resumed([], { network: network as GuestNetwork | null });
    agent.proceed();
    if (network === null) guest.send(AgentFrame.resolve, FIRST, packIntegers([16, 1]), Buffer.from("a.example"));
    else openConnection(guest, network, FIRST);
    await turns();
    expect(network?.opened.length ?? 0).toBe(network === null ? 0 : 1);
    expect(typesOf(guest)).toEqual(network === null ? [HostFrame.resolved] : []);
  }
});

describe("a host that leaves", () => {
  test("sends nothing more, and its commands neither end nor fail", async () => {
    const { guest, agent } = openAgent();
    const pending = new Promise<void>(() => undefined);
    let writtenBytes = 0;
    const run = agent.exec({ ...SPEC, stdin: "open" }, (_, chunk) => {
      writtenBytes += chunk.byteLength;
      return writtenBytes > 40_000 ? pending : undefined;
    });
    const { session } = await guest.frame(HostFrame.execSpec);
    guest.send(AgentFrame.started, session, packIntegers([32, 5]));
    await run.started;
    let isSettled = false;
    const settled = () => {
      isSettled = true;
    };
    run.exit.then(settled, settled);
    const leaving = agent.leave();
    const { session: leave } = await guest.frame(HostFrame.leave);
    // Output and an end that come before the answer are not granted or forgotten: the next host gets them again.
    guest.send(AgentFrame.output, session, packIntegers([32, Stream.stdout]), Buffer.alloc(40_000));
    run.signal(15);
    guest.send(AgentFrame.done, leave, done());
    await leaving;
    expect(guest.frames.at(-1)?.type).toBe(HostFrame.leave);
    expect(await failure(agent.flush())).toBeInstanceOf(AgentClosedError);
    guest.channel.deliver(null);
    await turns();
    expect([isSettled, guest.frames.at(-1)?.type]).toEqual([false, HostFrame.leave]);
  });
});
