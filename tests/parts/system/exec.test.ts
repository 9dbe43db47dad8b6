import { expect, test } from "bun:test";
import { closeSync, existsSync, readFileSync, readSync, writeSync } from "node:fs";
import { CommandError, run, STDERR_TAIL_BYTES_MAX, start } from "../../../src/system/exec.ts";
import { failureOf } from "../../support/failures.ts";
import { pause, until } from "../../support/waiting.ts";

const sh = (script: string) => ["/bin/sh", "-c", script];
const failure = async (promise: Promise<unknown>): Promise<CommandError> => {
  const error = await promise.then(
    () => null,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(CommandError);
  return error as CommandError;
};
/** A process that is dead may stay a zombie until its parent reaps it. */
function isAlive(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) [ZX]/.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch (error) {
    // ESRCH: it ended while its status was read.
    if (["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) return false;
    throw error;
  }
}

async function untilDead(pid: number): Promise<void> {
  await until(`process ${pid} is dead`, () => !isAlive(pid));
}

test("a program's output and standard error are returned; it gets nothing of this process's environment", async () => {
  process.env["COPPICE_TEST_CANARY"] = "leak";
  const result = await run({
    argv: sh("cat; env; echo oops >&2"),
    stdin: Buffer.from("in\n"),
    timeoutMs: 5000,
    env: { A: "b" },
  });
  const lines = Buffer.from(result.stdout).toString().trim().split("\n");
  expect(lines[0]).toBe("in");
  expect(
    lines
      .slice(1)
      .map((line) => line.split("=")[0])
      .sort(),
  ).toEqual(["A", "LANG", "PATH", "PWD"]);
  expect(result.stderr).toBe("oops");
});

test("an exit code, a signal and a missing program are distinguished", async () => {
  const code = await failure(run({ argv: sh("echo why >&2; exit 3"), timeoutMs: 5000 }));
  expect([code.exitCode, code.signal, code.timedOut, code.stderrTail]).toEqual([3, null, false, "why"]);
  const signal = await failure(run({ argv: sh("kill -TERM $$"), timeoutMs: 5000 }));
  expect([signal.exitCode, signal.signal]).toEqual([null, "SIGTERM"]);
  const missing = await failure(run({ argv: ["no-such-program-here"], timeoutMs: 5000 }));
  expect(missing.message).toBe("no-such-program-here is not installed");
});

test("only the end of standard error is kept", async () => {
  const error = await failure(
    run({ argv: sh("head -c 100000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1"), timeoutMs: 5000 }),
  );
  expect(error.stderrTail.length).toBe(STDERR_TAIL_BYTES_MAX - 1);
  expect(error.stderrTail.endsWith("xend")).toBe(true);
});

test("a time-out kills the whole process group", async () => {
  const error = await failure(run({ argv: sh("sleep 100 & echo $! >&2; wait"), timeoutMs: 300 }));
  expect(error.timedOut).toBe(true);
  await untilDead(Number(error.stderrTail));
});

test("an abort kills the whole process group and gives the signal's reason", async () => {
  const controller = new AbortController();
  const reason = new Error("cancelled");
  void pause("the program has started its own", 200).then(() => controller.abort(reason));
  const ending = run({ argv: sh("sleep 100 & wait"), timeoutMs: 60_000, signal: controller.signal });
  expect(await failureOf(ending)).toBe(reason);
  expect(await failureOf(run({ argv: sh("true"), timeoutMs: 1000, signal: controller.signal }))).toBe(reason);
});

test("more output than allowed ends the program", async () => {
  const error = await failure(run({ argv: ["yes"], timeoutMs: 10_000, stdoutBytesMax: 10_000 }));
  expect(error.message).toContain("more output than expected");
  expect(error.timedOut).toBe(false);
});

test("processes that a program leaves behind are killed, and do not delay its result", async () => {
  const { stdout } = await run({ argv: sh("sleep 100 & echo $!"), timeoutMs: 10_000 });
  await untilDead(Number(Buffer.from(stdout).toString()));
  // This one leaves the session, as the sixth field of its status shows, and keeps standard output open.
  const session = "while read -r _ _ _ _ _ sid _ </proc/$!/stat && [ $sid != $! ]; do :; done";
  const escaped = await run({ argv: sh(`setsid sleep 100 & ${session}; echo $!`), timeoutMs: 30_000 });
  const pid = Number(Buffer.from(escaped.stdout).toString());
  expect(isAlive(pid)).toBe(true);
  process.kill(pid, "SIGKILL");
});

test("start provides socket pairs, signals and the end of standard error", async () => {
  const child = start({
    argv: sh("read line <&3; echo got $line >&4; echo bye >&2; sleep 100"),
    extraFds: ["socket", "socket"],
    stderr: "tail",
  });
  const [first, second] = child.fds as [number, number];
  writeSync(first, "hello\n");
  const buffer = Buffer.alloc(100);
  let length = 0;
  await until("the child answers", () => {
    try {
      length = readSync(second, buffer);
    } catch (error) {
      // EAGAIN: the runtime's end does not block, and the child has not answered yet.
      if ((error as NodeJS.ErrnoException).code !== "EAGAIN") throw error;
    }
    return length > 0;
  });
  expect(buffer.subarray(0, length).toString()).toBe("got hello\n");
  child.kill("SIGKILL");
  expect(await child.exited).toEqual({ code: null, signal: "SIGKILL" });
  expect(child.stderrTail()).toBe("bye");
  child.kill("SIGKILL");
  closeSync(first);
  closeSync(second);
});

test("a program dies with the process that ran it", async () => {
  const source = `import { run } from ${JSON.stringify(`${import.meta.dir}/../../../src/system/exec.ts`)};
    await run({ argv: ["/bin/sh", "-c", "echo $$ >&2; echo $$ > $F; exec sleep 100"], timeoutMs: 60000, env: { F: process.argv[2] ?? "" } });`;
  const directory = (await run({ argv: ["mktemp", "-d"], timeoutMs: 5000 })).stdout;
  const at = Buffer.from(directory).toString().trim();
  await Bun.write(`${at}/parent.ts`, source);
  const parent = start({ argv: [process.execPath, `${at}/parent.ts`, `${at}/pid`], extraFds: [], stderr: "tail" });
  await until("the parent's program has started", () => {
    return existsSync(`${at}/pid`) && readFileSync(`${at}/pid`, "utf8") !== "";
  });
  const pid = Number(readFileSync(`${at}/pid`, "utf8"));
  expect(isAlive(pid)).toBe(true);
  parent.kill("SIGKILL");
  await parent.exited;
  await untilDead(pid);
  await run({ argv: ["rm", "-rf", at], timeoutMs: 5000 });
});
