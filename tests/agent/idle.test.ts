/** An EXEC without a program, which only keeps its namespaces. */
import { expect, test } from "bun:test";
import { AgentFrame, ExecFlag, HostFrame } from "../../src/vm/agent/protocol.ts";
import {
  EXIT_REFUSED,
  type ExecRequest,
  execFrames,
  execOpen,
  execute,
  frame,
  NativeAgent,
  parseError,
  signalFrame,
  u64,
} from "../support/agent/native-agent.ts";

const SIGKILL = 9;
/** Nothing with this name exists: it must not be executed. */
const IDLE: ExecRequest = { argv: ["idle"], env: [], idle: true, timeoutMs: 0 };

async function startIdle(agent: NativeAgent, session: number): Promise<void> {
  agent.send(execFrames(session, IDLE));
  expect((await agent.next()).type).toBe(AgentFrame.started);
}

test("an idle command runs nothing and has no time limit, others join it, and a signal ends it with all of them", async () => {
  await using agent = await NativeAgent.mounted();
  await startIdle(agent, 100);
  expect(await agent.quiet(300)).toBe(true);
  const joined = await execute(agent, { argv: ["/bin/sh", "-c", "exit 7"], main: 100 });
  expect(joined.exitCode).toBe(7);
  agent.send(execFrames(101, { argv: ["sleep", "60"], main: 100 }));
  expect((await agent.next()).type).toBe(AgentFrame.started);
  agent.send(signalFrame(100, SIGKILL));
  const ends = [await agent.next()];
  expect([ends[0]?.type, ends[0]?.session, ends[0]?.payload.readUInt32LE(4)]).toEqual([AgentFrame.exit, 100, 137]);
});

test("an idle command ends at a time limit that it gets later", async () => {
  await using agent = await NativeAgent.mounted();
  await startIdle(agent, 100);
  agent.send(frame(HostFrame.limit, 100, u64(1)));
  const { type, payload } = await agent.next();
  expect([type, payload.readUInt32LE(4)]).toEqual([AgentFrame.exit, 137]);
});

test("only an idle command may have no time limit without a target", async () => {
  await using agent = await NativeAgent.mounted();
  agent.send(execFrames(100, { argv: ["true"], timeoutMs: 0 }));
  expect(parseError(await agent.next()).text).toContain("time limit of 0 ms");
});

for (const [name, head] of [
  ["a target", { flags: ExecFlag.idle, main: 7 }],
  ["standard input", { flags: ExecFlag.idle | ExecFlag.stdin }],
  ["a terminal", { flags: ExecFlag.idle | ExecFlag.terminal }],
] as const) {
  test(`an idle command with ${name} is malformed`, async () => {
    await using agent = await NativeAgent.mounted();
    agent.send(execOpen(100, 64, head));
    expect((await agent.exited).code).toBe(EXIT_REFUSED);
  });
}
