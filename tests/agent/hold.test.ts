import { expect, test } from "bun:test";
import { AgentFrame, HostFrame } from "../../src/vm/agent/protocol.ts";
import {
  EXIT_REFUSED,
  execFrames,
  execOpen,
  frame,
  NativeAgent,
  parseError,
  putOpen,
  syncFrame,
  u16,
  u32,
} from "../support/agent/native-agent.ts";

/** A command that writes endlessly; returns after its first output. */
async function flooded(): Promise<NativeAgent> {
  const agent = await NativeAgent.mounted();
  agent.send(execFrames(3, { argv: ["sh", "-c", "yes & yes >&2 & sleep 0.3; exec sleep 60"], timeoutMs: 60_000 }));
  for (let output = 0; output < 2; ) if ((await agent.next()).type === AgentFrame.output) output += 1;
  return agent;
}

/** Sends HOLD and takes the frames up to its DONE. Returns the grants for the output among them. */
async function hold(agent: NativeAgent): Promise<Buffer> {
  const grants: Buffer[] = [];
  agent.send(frame(HostFrame.hold, 9));
  for (;;) {
    const { type, session, payload } = await agent.next();
    if (session === 9) {
      expect(type).toBe(AgentFrame.done);
      return Buffer.concat(grants);
    }
    if (type === AgentFrame.output)
      grants.push(frame(HostFrame.window, 3, payload.subarray(0, 4), u32(payload.length - 4)));
  }
}

test("no frame follows the answer to a HOLD until the next SYNC, whatever commands do", async () => {
  await using agent = await flooded();
  for (let round = 0; round < 5; round++) {
    const grants = await hold(agent);
    expect(await agent.quiet(150)).toBe(true);
    agent.send(syncFrame(BigInt(round)), grants);
    const answer = await agent.next();
    expect([answer.type, answer.payload.readBigUInt64LE()]).toEqual([AgentFrame.synced, BigInt(round)]);
    expect((await agent.next()).type).toBe(AgentFrame.output);
  }
});

test("an end during a hold is reported after it", async () => {
  await using agent = await NativeAgent.mounted();
  agent.send(execFrames(3, { argv: ["sh", "-c", "echo up; sleep 0.1; echo down; exit 5"] }));
  expect((await agent.next()).type).toBe(AgentFrame.started);
  expect((await agent.next()).type).toBe(AgentFrame.output);
  await hold(agent);
  expect(await agent.quiet(300)).toBe(true);
  expect((await agent.sync()).type).toBe(AgentFrame.synced);
  expect((await agent.next()).payload.subarray(4).toString()).toBe("down\n");
  const exit = await agent.next();
  expect([exit.type, exit.payload.readUInt32LE(4)]).toEqual([AgentFrame.exit, 5]);
});

test("a hold uses no processor time: the loop sleeps, although a time limit passes", async () => {
  await using agent = await NativeAgent.mounted();
  agent.send(execFrames(3, { argv: ["sleep", "60"], timeoutMs: 50 }));
  expect((await agent.next()).type).toBe(AgentFrame.started);
  await hold(agent);
  const before = agent.cpuTicks();
  expect(await agent.quiet(500)).toBe(true);
  expect(agent.cpuTicks() - before).toBeLessThan(10);
  agent.send(syncFrame());
  expect((await agent.next()).type).toBe(AgentFrame.synced);
  expect((await agent.next()).type).toBe(AgentFrame.exit);
});

test.each([
  ["a half sent command", execOpen(4, 100)],
  ["a half sent file", putOpen(4, "/f", 3)],
])("%s must end before a hold", async (_, bytes) => {
  await using agent = await NativeAgent.mounted();
  agent.send(bytes, frame(HostFrame.hold, 9));
  expect(parseError(await agent.next())).toEqual({ errno: 16, text: "requests are under way" });
  // Nothing is held: other requests are answered.
  agent.send(frame(HostFrame.index, 5, u16(9)));
  expect(parseError(await agent.next()).text).toBe("no such layer");
});

test.each([
  ["credit", frame(HostFrame.window, 3, u32(1), u32(1))],
  ["a request", frame(HostFrame.index, 5, u16(0))],
  ["another hold", frame(HostFrame.hold, 10)],
])("%s during a hold is malformed", async (_, bytes) => {
  await using agent = await flooded();
  await hold(agent);
  agent.send(bytes);
  expect(await agent.exited).toEqual({ code: EXIT_REFUSED, signal: null });
});
