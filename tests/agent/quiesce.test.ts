/** The states of a frozen scratch; files stand in for the kernel's operations. */
import { expect, test } from "bun:test";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { AgentFrame, ExitFlag, HostFrame } from "../../src/vm/agent/protocol.ts";
import {
  EXIT_REFUSED,
  execFrames,
  execute,
  frame,
  NativeAgent,
  parseError,
  putOpen,
  u16,
  u32,
} from "../support/agent/native-agent.ts";

const quiesce = (session: number, limitMs = 20_000): Buffer => frame(HostFrame.quiesce, session, u32(limitMs));
const thaw = (session: number): Buffer => frame(HostFrame.thaw, session);
const isStill = (agent: NativeAgent): boolean => existsSync(join(agent.directory, "quiesced"));

async function quiesced(session: number, limitMs?: number): Promise<NativeAgent> {
  const agent = await NativeAgent.mounted();
  agent.send(quiesce(session, limitMs));
  expect((await agent.next()).type).toBe(AgentFrame.quiesced);
  return agent;
}

test("it is written out, stays frozen until it is thawed, and reports how long", async () => {
  await using agent = await NativeAgent.mounted();
  for (let round = 0; round < 3; round++) {
    agent.send(frame(HostFrame.flush, 2));
    expect((await agent.next()).type).toBe(AgentFrame.done);
    agent.send(quiesce(3));
    expect((await agent.next()).type).toBe(AgentFrame.quiesced);
    expect(isStill(agent)).toBe(true);
    // Commands continue to run meanwhile.
    expect((await execute(agent, { argv: ["sleep", "0.05"] }, 7)).exitCode).toBe(0);
    agent.send(thaw(3));
    const done = await agent.next();
    expect(done.type).toBe(AgentFrame.done);
    expect(done.payload.readBigUInt64LE()).toBeGreaterThan(50_000_000n);
    expect(isStill(agent)).toBe(false);
  }
});

test("its time limit thaws it, and a later thaw is dropped", async () => {
  await using agent = await quiesced(3, 50);
  expect(parseError(await agent.next())).toEqual({ errno: 110, text: "the time was up" });
  expect(isStill(agent)).toBe(false);
  agent.send(thaw(3));
  expect((await agent.sync()).type).toBe(AgentFrame.synced);
});

test("a process that reaches its time limit thaws it; one that ends by itself does not", async () => {
  await using agent = await quiesced(3);
  expect((await execute(agent, { argv: ["true"] }, 4)).exitCode).toBe(0);
  expect(isStill(agent)).toBe(true);
  agent.send(execFrames(5, { argv: ["sleep", "60"], timeoutMs: 50 }));
  const seen = new Map<number, Buffer>();
  while (!seen.has(AgentFrame.error) || !seen.has(AgentFrame.exit)) {
    const { type, payload } = await agent.next();
    seen.set(type, payload);
  }
  expect(seen.get(AgentFrame.error)?.readUInt32LE()).toBe(125);
  expect(seen.get(AgentFrame.exit)?.readUInt32LE()).toBe(ExitFlag.timedOut);
  expect(isStill(agent)).toBe(false);
});

test("a thaw that was requested before it was frozen is done afterwards", async () => {
  await using agent = await NativeAgent.mounted();
  const busy = join(agent.directory, "busy");
  writeFileSync(busy, "");
  agent.send(quiesce(3), thaw(3));
  expect((await agent.sync()).type).toBe(AgentFrame.synced);
  rmSync(busy);
  expect((await agent.next()).type).toBe(AgentFrame.quiesced);
  expect((await agent.next()).type).toBe(AgentFrame.done);
  expect(isStill(agent)).toBe(false);
});

test("it is reported when something else thawed it", async () => {
  await using agent = await quiesced(3);
  rmSync(join(agent.directory, "quiesced"));
  agent.send(thaw(3));
  expect(parseError(await agent.next()).errno).toBe(2);
});

test("requests of the host that write, and a second freeze, are refused meanwhile", async () => {
  await using agent = await quiesced(3);
  agent.send(quiesce(4), frame(HostFrame.hold, 5), frame(HostFrame.freeze, 6), putOpen(7, "/f", 3));
  for (const text of ["requests are under way", "requests are under way", "sessions are alive"]) {
    expect(parseError(await agent.next())).toMatchObject({ errno: 16, text });
  }
  expect(parseError(await agent.next()).errno).toBe(16);
  agent.send(thaw(3));
  expect((await agent.next()).type).toBe(AgentFrame.done);
});

test.each([
  ["a file that is half put", putOpen(2, "/f", 3), 16],
  ["no root file system", frame(HostFrame.freeze, 2), 6],
])("it waits for nothing: %s refuses it", async (_, bytes, errno) => {
  await using agent = await NativeAgent.mounted();
  agent.send(bytes);
  if (errno === 6) expect((await agent.next()).type).toBe(AgentFrame.done);
  agent.send(quiesce(3));
  expect(parseError(await agent.next()).errno).toBe(errno);
  if (errno !== 6) return;
  agent.send(frame(HostFrame.flush, 4));
  expect(parseError(await agent.next()).errno).toBe(errno);
});

test.each([
  ["a second thaw", Buffer.concat([thaw(3), thaw(3)])],
  ["credit", frame(HostFrame.window, 3, u32(1), u32(1))],
  ["a size", frame(HostFrame.resize, 3, u16(1), u16(1))],
])("%s for it is malformed", async (_, bytes) => {
  await using agent = await quiesced(3);
  writeFileSync(join(agent.directory, "busy"), "");
  agent.send(bytes);
  expect(await agent.exited).toEqual({ code: EXIT_REFUSED, signal: null });
  rmSync(join(agent.directory, "busy"));
});
