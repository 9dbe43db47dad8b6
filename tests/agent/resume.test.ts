/** Hosts that come and go in the middle of anything, against the sanitizer build. */
import { expect, test } from "bun:test";
import { closeSync, openSync, readFileSync, readSync } from "node:fs";
import {
  AgentFrame,
  ExitFlag,
  HostFrame,
  SessionFlag,
  Stream,
  WINDOW_BYTES_INITIAL,
} from "../../src/vm/agent/protocol.ts";
import { type ListedSession, ListeningAgent, resumeFrame } from "../support/agent/listening-agent.ts";
import { type AgentStream, execFrames, execOpen, frame, putOpen, u16, u32 } from "../support/agent/native-agent.ts";
import { until } from "../support/waiting.ts";

/** The part of a command that all hosts together have stored. */
interface Stored {
  readonly bytes: Record<number, Buffer[]>;
  readonly sizes: Record<number, number>;
  exits: number;
}

const stored = (): Stored => ({
  bytes: { [Stream.stdout]: [], [Stream.stderr]: [] },
  sizes: { [Stream.stdout]: 0, [Stream.stderr]: 0 },
  exits: 0,
});
const textOf = (logged: Stored, stream: number): string => Buffer.concat(logged.bytes[stream] ?? []).toString("latin1");

/**
 * Stores the output of a session, and grants credit for what is stored, until it has stored `limit` more bytes or the end has
 * come. A host may be gone before a grant is on its way.
 */
async function store(host: AgentStream, listed: ListedSession, logged: Stored, limit: number): Promise<void> {
  const next: Record<number, number> = { [Stream.stdout]: listed.stdoutFrom, [Stream.stderr]: listed.stderrFrom };
  for (let left = limit; left > 0; ) {
    const { type, session, payload } = await host.next();
    expect(session).toBe(listed.id);
    if (type === AgentFrame.exit) {
      logged.exits += 1;
      return;
    }
    if (type !== AgentFrame.output) continue;
    const stream = payload.readUInt32LE();
    const bytes = payload.subarray(4);
    const skipped = Math.min((logged.sizes[stream] ?? 0) - (next[stream] ?? 0), bytes.length);
    // Less would be a gap.
    expect(skipped).toBeGreaterThanOrEqual(0);
    next[stream] = (next[stream] ?? 0) + bytes.length;
    logged.bytes[stream]?.push(bytes.subarray(skipped));
    logged.sizes[stream] = (logged.sizes[stream] ?? 0) + bytes.length - skipped;
    left -= bytes.length;
    host.send(frame(HostFrame.window, session, u32(stream), u32(bytes.length)));
  }
}

test("every byte of a flood arrives once, over 60 hosts that leave without a word", async () => {
  const { agent, host: first } = await ListeningAgent.mounted();
  await using _agent = agent;
  const script = "i=0; while [ $i -lt 40000 ]; do echo line $i; echo error $i >&2; i=$((i+1)); done; exit 9";
  first.send(execFrames(3, { argv: ["sh", "-c", script], timeoutMs: 60_000, tag: 7 }));
  await first.next();
  first.cut();
  const logged = stored();
  for (let hosts = 1; logged.exits === 0; hosts++) {
    const { host, sessions } = await agent.resume();
    const [listed] = sessions;
    if (listed === undefined) throw new Error("the command is not listed");
    expect([sessions.length, listed.id, listed.tag]).toEqual([1, 3, 7]);
    expect(listed.keptBytes).toBeLessThanOrEqual(2 * WINDOW_BYTES_INITIAL);
    await store(host, listed, logged, hosts < 60 ? (hosts * 7919) % 30_000 : Number.POSITIVE_INFINITY);
    host.cut();
  }
  const lines = (word: string) => Array.from({ length: 40_000 }, (_, index) => `${word} ${index}\n`).join("");
  expect(textOf(logged, Stream.stdout) === lines("line")).toBe(true);
  expect(textOf(logged, Stream.stderr) === lines("error")).toBe(true);
  // The end comes to every host, until one has stored it.
  for (let again = 0; again < 3; again++) {
    const { host, sessions } = await agent.resume();
    expect(sessions[0]?.flags).toBe(SessionFlag.started | SessionFlag.finished);
    const exit = await host.next();
    expect([exit.type, exit.session, exit.payload.readUInt32LE(4)]).toEqual([AgentFrame.exit, 3, 9]);
    if (again === 2) host.send(frame(HostFrame.forget, 3));
    if (again === 2) await host.sync();
    host.cut();
  }
  expect((await agent.resume()).sessions).toEqual([]);
});

test("a host may leave at every byte of what it sends", async () => {
  const { agent, host: first } = await ListeningAgent.mounted();
  await using _agent = agent;
  first.cut();
  const start = Buffer.concat([
    putOpen(5, "/f", 3),
    frame(HostFrame.putData, 5, Buffer.from("abc")),
    execFrames(6, { argv: ["cat"], stdin: true, timeoutMs: 60_000 }),
  ]);
  const bytes = Buffer.concat([
    start,
    frame(HostFrame.stdin, 6, Buffer.from("in")),
    frame(HostFrame.flush, 7),
    frame(HostFrame.quiesce, 8, u32(500)),
    execOpen(9, 100),
    frame(HostFrame.index, 10, u16(0)),
  ]);
  let started = 0;
  for (let cut = 1; cut <= bytes.length; cut++) {
    const { host, sessions } = await agent.resume();
    // A command of an earlier cut ends, and is forgotten.
    for (const { id } of sessions) {
      started += 1;
      host.send(frame(HostFrame.signal, id, u32(9), u32(0)));
      while ((await host.next()).type !== AgentFrame.exit);
      host.send(frame(HostFrame.forget, id));
    }
    await host.flush(bytes.subarray(0, cut));
    if (cut >= start.length) while ((await host.next()).type !== AgentFrame.started);
    host.cut();
  }
  expect(started).toBe(bytes.length - start.length);
  const { host, sessions } = await agent.resume();
  expect(sessions.every(({ id, flags }) => id === 6 && (flags & SessionFlag.started) !== 0)).toBe(true);
  for (const { id } of sessions) host.send(frame(HostFrame.signal, id, u32(9), u32(0)));
  // The scratch is not frozen, and nothing waits for a host that is gone.
  host.send(putOpen(11, "/g", 0));
  for (;;) {
    const { type, session } = await host.next();
    if (session !== 11) continue;
    expect(type).toBe(AgentFrame.done);
    break;
  }
}, 120_000);

test("input before a RECEIPT that was answered is there for the next host, also when the program reads nothing", async () => {
  const { agent, host: first } = await ListeningAgent.mounted();
  await using _agent = agent;
  first.send(execFrames(3, { argv: ["sleep", "60"], stdin: true, timeoutMs: 60_000 }));
  await first.next();
  for (const [at, size] of [1, 4000, 60_000].entries()) {
    first.send(frame(HostFrame.stdin, 3, Buffer.alloc(size, "x")), frame(HostFrame.receipt, 10 + at));
    let next = await first.next();
    // Credit for the part that is in the pipe of the program.
    while (next.type === AgentFrame.window) next = await first.next();
    expect([next.type, next.session]).toEqual([AgentFrame.done, 10 + at]);
  }
  first.cut();
  const { host, sessions } = await agent.resume();
  expect(sessions.map(({ stdinBytes }) => stdinBytes)).toEqual([64_001]);
  host.send(frame(HostFrame.signal, 3, u32(9), u32(0)));
});

test("a host that leaves during its HOLD ends it", async () => {
  const { agent, host: first } = await ListeningAgent.mounted();
  await using _agent = agent;
  first.send(execFrames(3, { argv: ["sh", "-c", "sleep 0.2; echo late"], timeoutMs: 10_000 }));
  await first.next();
  first.send(frame(HostFrame.hold, 9));
  expect((await first.next()).type).toBe(AgentFrame.done);
  first.cut();
  const { host, sessions } = await agent.resume();
  expect(sessions.map(({ id }) => id)).toEqual([3]);
  expect((await host.next()).payload.subarray(4).toString()).toBe("late\n");
});

test("time limits hold while no host is there, and a flood costs no processor time once it is kept", async () => {
  const { agent, host: first } = await ListeningAgent.mounted();
  await using _agent = agent;
  first.send(execFrames(3, { argv: ["yes"], timeoutMs: 1500 }));
  first.send(execFrames(4, { argv: ["sh", "-c", "while :; do (exit 0) & done"], timeoutMs: 400 }));
  await first.next();
  await first.next();
  first.cut();
  // A reaper is the agent's child, and lasts as long as its command.
  const reapers = () => readFileSync(`/proc/${agent.pid}/task/${agent.pid}/children`, "latin1").trim().split(" ");
  await until("the short limit has passed", () => reapers().length === 1);
  const before = agent.cpuTicks();
  await until("both limits have passed", () => reapers().join() === "");
  expect(agent.cpuTicks() - before).toBeLessThan(20);
  const { host, sessions } = await agent.resume();
  expect(sessions.map(({ id }) => id)).toEqual([3, 4]);
  for (const { keptBytes } of sessions) expect(keptBytes).toBeLessThanOrEqual(2 * WINDOW_BYTES_INITIAL);
  for (let ends = 0; ends < 2; ) {
    const { type, session, payload } = await host.next();
    if (type === AgentFrame.output)
      host.send(frame(HostFrame.window, session, payload.subarray(0, 4), u32(payload.length - 4)));
    if (type !== AgentFrame.exit) continue;
    expect(payload.readUInt32LE() & ExitFlag.timedOut).toBe(ExitFlag.timedOut);
    ends += 1;
  }
});

test("RESUME may come again and again, also half, and other frames before it end the agent", async () => {
  const { agent, host: first } = await ListeningAgent.mounted();
  await using _agent = agent;
  first.send(execFrames(3, { argv: ["sh", "-c", "echo once; exec sleep 60"], timeoutMs: 60_000 }));
  for (let type = 0; type !== AgentFrame.output; ) ({ type } = await first.next());
  first.cut();
  const { host } = await agent.resume();
  for (let nonce = 100n; nonce < 150n; nonce++) host.send(resumeFrame(nonce));
  const types: number[] = [];
  for (let left = 50; left > 0; ) {
    const { type } = await host.next();
    types.push(type);
    if (type === AgentFrame.resumed) left -= 1;
  }
  expect((await host.next()).payload.subarray(4).toString()).toBe("once\n");
  expect(types.every((type) => type === AgentFrame.resumed || type === AgentFrame.output)).toBe(true);
  host.cut();
  const muted = await agent.connect();
  muted.send(frame(HostFrame.forget, 3));
  expect(await agent.exited).toBe(3);
});

test("what is forgotten is no longer in the agent's memory", async () => {
  const { agent, host } = await ListeningAgent.mounted();
  await using _agent = agent;
  const secret = "qJ8-secret-of-the-first-";
  const print = (text: string, count: number) => ["sh", "-c", `yes "$0" | head -c ${count}`, text];
  const finished = async (id: number): Promise<void> => {
    for (;;) {
      const { type, session, payload } = await host.next();
      if (type === AgentFrame.output)
        host.send(frame(HostFrame.window, session, payload.subarray(0, 4), u32(payload.length - 4)));
      if (type === AgentFrame.exit && session === id) return;
    }
  };
  host.send(execFrames(3, { argv: print(secret, 400_000), timeoutMs: 60_000 }));
  await finished(3);
  host.send(frame(HostFrame.forget, 3));
  // The buffers of frames have the bytes of others by then.
  for (const id of [4, 5]) {
    host.send(execFrames(id, { argv: print("other", 2_000_000), timeoutMs: 60_000 }));
    await finished(id);
  }
  expect(await host.sync()).toMatchObject({ type: AgentFrame.synced });
  expect(memoryHas(agent.pid, "other")).toBe(true);
  expect(memoryHas(agent.pid, `${secret}\n${secret}`)).toBe(false);
}, 60_000);

/** True when the writable memory of a process contains a text. */
function memoryHas(pid: number, text: string): boolean {
  const fd = openSync(`/proc/${pid}/mem`, "r");
  using _fd = { [Symbol.dispose]: () => closeSync(fd) };
  const step = Buffer.alloc(1_048_576);
  for (const line of readFileSync(`/proc/${pid}/maps`, "latin1").split("\n")) {
    const [, from, to] = /^([0-9a-f]+)-([0-9a-f]+) rw/.exec(line) ?? [];
    if (from === undefined || to === undefined) continue;
    const end = Number(`0x${to}`);
    // The shadow of the address sanitizer is terabytes of nothing.
    if (end - Number(`0x${from}`) > 2 ** 32) continue;
    for (let at = Number(`0x${from}`); at < end; at += step.length - text.length) {
      const size = Math.min(step.length, end - at);
      const read = readSync(fd, step, 0, size, at);
      if (step.subarray(0, read).includes(text)) return true;
    }
  }
  return false;
}
