import { join } from "node:path";
import { type Finding, missing, rowOf } from "../../src/cli/bench/row.ts";
import { CommandError, findProgram, run, start } from "../../src/system/exec.ts";
import { scratchDirectory } from "../../src/system/scratch.ts";
import { executableUnderTest } from "../support/executable.ts";
import { pause } from "../support/waiting.ts";
import type { BenchHost } from "./host.ts";
import { buildBareProgram } from "./peers/bare-program.ts";
import { startServer } from "./peers/peer.ts";

const PERF_START_MS = 2500;
const TRIAL_MS_MAX = 30_000;
const SCRIPT_MS_MAX = 60_000;
const SCRIPT_BYTES_MAX = 268_435_456;
/** Numbers of epoll_pwait2, epoll_pwait and epoll_wait: a turn of the event loop lies between two of these. */
const WAITS = [441, 281, 232];
const LINE = /^\s*(\d+)\s+(\d+\.\d+):\s+\S*(sched_switch|sys_enter|sys_exit):\s+(.*)$/;

/** Requests that one captured run takes. */
const REQUESTS_PER_RUN = 2;

/** The turns of the event loop while instances are captured, by the time that each took of a processor. */
export async function* turnRows(host: BenchHost): AsyncGenerator<Finding> {
  const name = "longest turn of the event loop, while spawns are captured, the first of a process included";
  await using directory = await scratchDirectory("/tmp", "coppice-turns-");
  const problem = await perfProblem(join(directory.path, "trial.data"), host.appliance.pid);
  if (problem !== null) {
    yield missing(name, problem);
    return;
  }
  const count = host.target.rounds(30, 8);
  // A process that has listed nothing yet: its code is not warm.
  await host.restartFresh();
  const recorded = join(directory.path, "perf.data");
  const turns = await turnsDuring(recorded, host.appliance.pid, async () => {
    for (let n = 0; n < count; n++) await host.target.run(host.base, "echo changed > /root/file");
  });
  const bare = await bareTurns(directory.path, count * REQUESTS_PER_RUN);
  const row = {
    ...{ from: "return from epoll_wait", to: "the next epoll_wait, what other threads had of the processor left out" },
    ...{ values: [Math.max(...turns)], unit: "ms" },
    note: `${turns.length} turns in ${count} spawns, ${(turns.reduce((a, b) => a + b, 0) / count).toFixed(1)} ms a spawn`,
  };
  yield rowOf({ ...row, name, atMost: 5 });
  const against = { name: "a bare Elysia server that answers as many requests", values: [Math.max(...bare)] };
  yield rowOf({ ...row, name: "the same turn, against a bare server's", against, atMost: 3 });
  await host.target.deleteMade();
}

/** Turns of a bare server that answers so many requests, the first of its process included. */
async function bareTurns(directory: string, count: number): Promise<number[]> {
  await using server = await startServer([await buildBareProgram(directory, executableUnderTest()), "elysia"]);
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: '{"image":"x"}' };
  return await turnsDuring(join(directory, "bare.data"), server.pid, async () => {
    for (let n = 0; n < count; n++) {
      const isStart = n % REQUESTS_PER_RUN === 0;
      const path = isStart ? "/v1/instances" : "/v1/operations/x";
      const response = await fetch(server.url + path, isStart ? post : {});
      if (response.status !== 200) throw new Error(`the bare server answered ${response.status}`);
    }
  });
}

async function turnsDuring(path: string, pid: number, work: () => Promise<void>): Promise<number[]> {
  const recording = await record(path, pid);
  await work();
  return turnsOf(await recording.end(), pid);
}

/** Why nothing can be recorded here, or null: many hosts have no perf, and many kernels do not let it. */
export async function perfProblem(path: string, pid: number): Promise<string | null> {
  if (findProgram("perf") === null) return "perf is not installed (linux-perf)";
  try {
    await run({ argv: [...recordArgs(path, pid), "--", "true"], timeoutMs: TRIAL_MS_MAX });
    return null;
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    return `perf cannot record here: ${error.stderrTail.trim().split("\n")[0] || error.message}`;
  }
}

function recordArgs(path: string, pid: number): string[] {
  const isWait = WAITS.map((id) => `id==${id}`).join("||");
  const own = `common_pid==${pid} && (${isWait})`;
  return [
    ...["perf", "record", "-q", "-a", "-m", "2048", "-o", path],
    ...["-e", "sched:sched_switch", "--filter", `prev_pid==${pid} || next_pid==${pid}`],
    ...["-e", "raw_syscalls:sys_enter", "--filter", own, "-e", "raw_syscalls:sys_exit", "--filter", own],
  ];
}

async function record(path: string, pid: number): Promise<{ end(): Promise<string> }> {
  const child = start({ argv: recordArgs(path, pid), extraFds: [], stderr: "tail" });
  await pause("perf has begun", PERF_START_MS);
  return {
    async end() {
      child.kill("SIGINT");
      await child.exited;
      const argv = ["perf", "script", "-i", path, "--ns", "-F", "tid,time,event,trace"];
      const { stdout } = await run({ argv, timeoutMs: SCRIPT_MS_MAX, stdoutBytesMax: SCRIPT_BYTES_MAX });
      return Buffer.from(stdout).toString();
    },
  };
}

/** Time of a processor in each turn of the thread `pid`, in `milliseconds`, from the text of `perf script`. */
export function turnsOf(script: string, pid: number): number[] {
  const turns: number[] = [];
  let ranSeconds = 0;
  let onSince: number | null = null;
  let turnBegan: number | null = null;
  for (const text of script.split("\n")) {
    const [, tid, time, event, detail = ""] = LINE.exec(text) ?? [];
    const now = Number(time);
    if (event === "sched_switch") {
      if (detail.includes(`prev_pid=${pid} `)) {
        ranSeconds += onSince === null ? 0 : now - onSince;
        onSince = null;
      } else onSince = now;
    } else if (Number(tid) === pid) {
      const ran = ranSeconds + (onSince === null ? 0 : now - onSince);
      if (event === "sys_exit") turnBegan = ran;
      else if (turnBegan !== null) turns.push((ran - turnBegan) * 1000);
    }
  }
  if (turns.length === 0) throw new Error("perf recorded no turn of the event loop");
  return turns;
}
