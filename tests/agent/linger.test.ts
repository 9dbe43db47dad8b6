/** Processes that a lingering command leaves behind. */
import { expect, test } from "bun:test";
import { AgentFrame, ExecFlag, ExitFlag, SignalFlag } from "../../src/vm/agent/protocol.ts";
import {
  collect,
  EXIT_REFUSED,
  type ExecRequest,
  execFrames,
  execOpen,
  execute,
  NativeAgent,
  signalFrame,
} from "../support/agent/native-agent.ts";
import { until } from "../support/waiting.ts";

const HOST = 100;
const SESSION = 7;
const SIGKILL = 9;
const SIGTERM = 15;

const shell = (script: string, more: Partial<ExecRequest> = {}): ExecRequest => ({
  argv: ["/bin/sh", "-c", script],
  main: HOST,
  linger: true,
  ...more,
});

/** An agent with an idle command, whose namespaces the others join. */
async function hosted(): Promise<NativeAgent> {
  const agent = await NativeAgent.mounted();
  agent.send(execFrames(HOST, { argv: ["idle"], env: [], idle: true, timeoutMs: 0 }));
  expect((await agent.next()).type).toBe(AgentFrame.started);
  return agent;
}

/** The next bytes of standard output, as text. */
async function output(agent: NativeAgent): Promise<string> {
  for (;;) {
    const { type, payload } = await agent.next();
    if (type === AgentFrame.output) return payload.subarray(4).toString();
    if (type !== AgentFrame.started) throw new Error(`a frame of type ${type}: ${payload.toString("latin1")}`);
  }
}

/** A process that a command left behind, which the test ends. */
class Left implements Disposable {
  readonly #pid: number;

  constructor(output: Buffer | string) {
    this.#pid = Number(output.toString());
    if (!(this.#pid > 1)) throw new Error(`no pid: ${output}`);
  }

  get lives(): boolean {
    try {
      return process.kill(this.#pid, 0);
    } catch {
      return false;
    }
  }

  end(): void {
    if (this.lives) process.kill(this.#pid, SIGKILL);
  }

  [Symbol.dispose](): void {
    this.end();
  }
}

/** Leaves a process without the outputs. */
const left = "sleep 60 >/dev/null 2>&1 & echo $!";
/** Leaves a process with the outputs. */
const held = "sleep 60 & echo $!; exit 3";
/** Leaves a process of another group with the outputs, and waits. */
const apart = "setsid sh -c 'echo $$; exec sleep 60' & sleep 60 & wait";

test("a process without the outputs stays, and does not delay the end", async () => {
  await using agent = await hosted();
  const { stdout, exitCode, flags } = await execute(agent, shell(`${left}; exit 3`));
  using process = new Left(stdout);
  expect([exitCode, flags]).toEqual([3, 0]);
  expect((await execute(agent, shell(`kill -0 ${stdout}`))).exitCode).toBe(0);
  expect(process.lives).toBe(true);
});

test("without the flag it ends with the command", async () => {
  await using agent = await hosted();
  const { stdout } = await execute(agent, shell(left, { linger: false }));
  using process = new Left(stdout);
  await until("the process has ended", () => !process.lives);
});

test("a process with the outputs keeps them open until it ends", async () => {
  await using agent = await hosted();
  agent.send(execFrames(SESSION, shell(held)));
  using process = new Left(await output(agent));
  expect(await agent.quiet(300)).toBe(true);
  process.end();
  expect(await collect(agent, SESSION)).toMatchObject({ exitCode: 3, flags: 0 });
});

for (const [name, number] of [
  ["SIGTERM", SIGTERM],
  ["SIGKILL", SIGKILL],
] as const) {
  test(`${name} after the command's end lets the outputs go, and the process stays`, async () => {
    await using agent = await hosted();
    agent.send(execFrames(SESSION, shell(held)));
    using process = new Left(await output(agent));
    expect(await agent.quiet(300)).toBe(true);
    agent.send(signalFrame(SESSION, number, SignalFlag.group));
    expect(await collect(agent, SESSION)).toMatchObject({ exitCode: 3, flags: 0 });
    expect(process.lives).toBe(true);
  });
}

test("a signal ends the group of the command, and does not wait for the outputs of others", async () => {
  await using agent = await hosted();
  agent.send(execFrames(SESSION, shell(apart)));
  using process = new Left(await output(agent));
  agent.send(signalFrame(SESSION, SIGKILL, SignalFlag.group));
  expect(await collect(agent, SESSION)).toMatchObject({ status: SIGKILL, flags: 0 });
  expect(process.lives).toBe(true);
});

test("the time limit ends the group of the command, and does not wait for the outputs of others", async () => {
  await using agent = await hosted();
  agent.send(execFrames(SESSION, shell(apart, { timeoutMs: 1500 })));
  using process = new Left(await output(agent));
  expect(await collect(agent, SESSION)).toMatchObject({ exitCode: 137, flags: ExitFlag.timedOut });
  expect(process.lives).toBe(true);
});

test("the time limit counts while others keep the outputs open", async () => {
  await using agent = await hosted();
  agent.send(execFrames(SESSION, shell(held, { timeoutMs: 1500 })));
  using process = new Left(await output(agent));
  expect(await collect(agent, SESSION)).toMatchObject({ exitCode: 137, flags: ExitFlag.timedOut });
  expect(process.lives).toBe(true);
});

test("outputs that never fall silent end at the time limit, with what they had", async () => {
  await using agent = await hosted();
  agent.send(execFrames(SESSION, shell("setsid sh -c 'echo $$; yes' & exit 0", { timeoutMs: 1000 })));
  const { stdout, flags } = await collect(agent, SESSION);
  using process = new Left(stdout.subarray(0, stdout.indexOf("\n")));
  expect(flags).toBe(ExitFlag.timedOut);
  // The writer gets SIGPIPE.
  await until("the process has ended", () => !process.lives);
});

test("a terminal ends when nothing has it open, and a process without it stays", async () => {
  await using agent = await hosted();
  const script = `trap '' HUP; ${left}`;
  const { stdout, exitCode } = await execute(agent, shell(script, { terminal: true, rows: 24, columns: 80 }));
  using process = new Left(stdout);
  expect(exitCode).toBe(0);
  expect(process.lives).toBe(true);
});

test("without a target, the flag is malformed", async () => {
  await using agent = await NativeAgent.mounted();
  agent.send(execOpen(SESSION, 64, { flags: ExecFlag.linger }));
  expect((await agent.exited).code).toBe(EXIT_REFUSED);
});
