/** A guest that sends frames at full speed, and one that reads none, against a scripted agent. */

import { heapStats } from "bun:jsc";
import { describe, expect, test } from "bun:test";
import { setImmediate } from "node:timers/promises";
import { AgentError, type ExecHandle } from "../../../src/vm/agent/agent.ts";
import { encodeFrame, packIntegers } from "../../../src/vm/agent/frames.ts";
import {
  AgentFrame,
  CONNECTIONS_COUNT_MAX,
  HostFrame,
  PROCESSES_COUNT_MAX,
  Stream,
} from "../../../src/vm/agent/protocol.ts";
import { exitPayload, failure, openAgent, SPEC } from "../../support/guests/agent-script.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { turns } from "../../support/waiting.ts";

/** Twice as many frames as are handled at a time, so that a pause ends in the middle of a turn. */
const TURN_FRAMES_COUNT_MAX = 256;

describe("a flood of frames", () => {
  test("is handled completely, a few frames in each turn of the event loop, in pieces of any size", async () => {
    const { guest, agent } = openAgent();
    const random = seededRandom(seedOfTests());
    let count = 0;
    const seen: number[] = [];
    const run = agent.exec(SPEC, (_, chunk) => {
      count += 1;
      for (const byte of chunk) seen.push(byte);
      return undefined;
    });
    const { session } = await guest.frame(HostFrame.execOpen);
    const sent = Array.from({ length: 20_000 }, (_, index) => index % 251);
    const frames = sent.map((byte) =>
      encodeFrame(AgentFrame.output, session, packIntegers([32, Stream.stdout]), Uint8Array.of(byte)),
    );
    const stream = Buffer.concat([...frames, encodeFrame(AgentFrame.exit, session, exitPayload(0))]);
    for (let at = 0; at < stream.byteLength; ) {
      const bytes = 1 + random.below(random.below(2) === 0 ? 30 : 60_000);
      guest.channel.deliver(stream.subarray(at, at + bytes));
      at += bytes;
    }
    const counts = [count];
    while (guest.channel.paused) {
      const before = count;
      await setImmediate();
      counts.push(count - before);
    }
    expect((await run.exit).exitCode).toBe(0);
    expect(Math.max(...counts)).toBeLessThanOrEqual(TURN_FRAMES_COUNT_MAX);
    expect(Buffer.from(seen).equals(Buffer.from(sent))).toBe(true);
  });

  test("ends with the link, without the remaining frames", async () => {
    const { guest, agent } = openAgent();
    let count = 0;
    const run = agent.exec(SPEC, () => {
      count += 1;
      return undefined;
    });
    const { session } = await guest.frame(HostFrame.execOpen);
    const output = encodeFrame(AgentFrame.output, session, packIntegers([32, Stream.stdout]), Uint8Array.of(1));
    const frames = Array.from({ length: 1000 }, () => output);
    guest.channel.deliver(Buffer.concat([...frames, encodeFrame(AgentFrame.done, session, new Uint8Array(8)), output]));
    await failure(run.exit);
    await turns();
    expect([count, guest.channel.paused]).toEqual([1000, true]);
  });
});

describe("a guest that reads no frames", () => {
  /** A command that runs in a guest which accepts no further frame. */
  async function deaf() {
    const { guest, agent } = openAgent();
    const main = agent.exec(SPEC, () => undefined);
    const { session } = await guest.frame(HostFrame.execOpen);
    guest.send(AgentFrame.started, session, packIntegers([32, 1]));
    await main.started;
    guest.channel.write = () => new Promise(() => undefined);
    const start = (signal?: AbortSignal): ExecHandle => {
      const spec = { ...SPEC, argv: ["/bin/true", "x".repeat(100_000)] };
      const run = agent.exec(spec, () => undefined, { target: main, ...(signal === undefined ? {} : { signal }) });
      run.exit.catch(() => undefined);
      return run;
    };
    return { guest, agent, session, start };
  }

  test("gets starts and connections up to its limits, and others are refused at once", async () => {
    const { agent, start } = await deaf();
    const left = new AbortController();
    for (let count = 1; count < PROCESSES_COUNT_MAX; count++) start(left.signal);
    await turns();
    for (const { started, exit } of [start(), start()]) {
      for (const refused of [started, exit]) expect(await failure(refused)).toMatchObject({ errno: 11 });
    }
    for (let count = 0; count < CONNECTIONS_COUNT_MAX; count++) agent.dial(80).catch(() => undefined);
    expect(await failure(agent.dial(80))).toBeInstanceOf(AgentError);
  });

  test("holds no memory of a start whose caller has left, and frees its place", async () => {
    const { guest, session, start } = await deaf();
    const bytes = () => {
      Bun.gc(true);
      return heapStats().extraMemorySize;
    };
    const first = start();
    await turns();
    const before = bytes();
    for (let round = 0; round < 20; round++) {
      const left = new AbortController();
      const runs = Array.from({ length: PROCESSES_COUNT_MAX - 2 }, () => start(left.signal));
      await turns();
      left.abort(new Error("left"));
      for (const { exit } of runs) expect(await failure(exit)).toMatchObject({ message: "left" });
    }
    expect(bytes() - before).toBeLessThan(10_000_000);
    guest.send(AgentFrame.exit, session, new Uint8Array(3));
    expect((await failure(first.exit)).name).toBe("AgentProtocolError");
  });

  test("gets only the latest size and the latest time limit", async () => {
    const { guest, agent } = openAgent();
    const run = agent.exec({ ...SPEC, terminal: { rows: 1, columns: 1 } }, () => undefined);
    const { session } = await guest.frame(HostFrame.execSpec);
    guest.send(AgentFrame.started, session, packIntegers([32, 1]));
    await run.started;
    const writes: { frame: Uint8Array; accept: () => void }[] = [];
    guest.channel.write = (frame) => new Promise((accept) => writes.push({ frame: frame.slice(), accept }));
    for (let count = 1; count <= 1000; count++) {
      run.resize({ rows: count, columns: 80 });
      run.limit(count);
    }
    await turns();
    expect(writes).toHaveLength(2);
    for (const { accept } of writes) accept();
    await turns();
    const latest = [
      encodeFrame(HostFrame.resize, session, packIntegers([16, 1000], [16, 80])),
      encodeFrame(HostFrame.limit, session, packIntegers([64, 1000])),
    ];
    expect(writes.slice(2).map(({ frame }) => Buffer.from(frame))).toEqual(latest.map((frame) => Buffer.from(frame)));
    run.exit.catch(() => undefined);
  });

  test("fails the waiting starts when its stream ends", async () => {
    const { guest, start } = await deaf();
    const runs = [start(), start(), start()];
    await turns();
    guest.channel.deliver(null);
    for (const { exit } of runs) expect((await failure(exit)).name).toBe("AgentClosedError");
    expect((await failure(start().exit)).name).toBe("AgentClosedError");
  });
});
