import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { CliProcess, clientEnvironment, programWords } from "../../support/cli/cli-process.ts";

setDefaultTimeout(180_000);

const MIB = 1_048_576;
/** More than the appliance stores of a stream. */
const PIPE_BYTES = 64 * MIB;
/** For each of the two programs, neither of which may hold what it passes on. */
const GROWTH_MIB_MAX = 60;
const RUN = ["run", "--image", "tag:busybox", "--disposable", "--"];

let busybox: BusyboxAppliance;
let appliance: Appliance;

beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ tag: "busybox" });
  ({ appliance } = busybox);
});

afterAll(async () => {
  await busybox[Symbol.asyncDispose]();
});

async function peakMib(pid: number): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "utf8");
  return Number(/VmHWM:\s+(\d+) kB/.exec(status)?.[1]) / 1024;
}

/** Pseudo-random bytes, the same each time, made on demand. */
function* bytesOf(length: number): Generator<Buffer> {
  for (let at = 0; at < length; at += MIB) yield createHash("shake256", { outputLength: MIB }).update(`${at}`).digest();
}

/** Sends bytes through `cat` in a run. @returns growth of the peak memory of the client since its first output, in MiB */
async function passThrough(bytes: number): Promise<number> {
  const child = Bun.spawn([...programWords(), ...RUN, "cat"], {
    env: clientEnvironment(appliance),
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
  });
  let clientBefore = 0;
  const write = async () => {
    for (const piece of bytesOf(bytes)) {
      child.stdin.write(piece);
      // Resolves when the pipe has accepted the piece.
      await child.stdin.flush();
    }
    await child.stdin.end();
  };
  const written = write();
  const got = createHash("sha256");
  let total = 0;
  let clientMib = 0;
  for await (const chunk of child.stdout) {
    if (total === 0) clientBefore = await peakMib(child.pid);
    got.update(chunk);
    total += chunk.byteLength;
    clientMib = await peakMib(child.pid).catch(() => clientMib);
  }
  await written;
  expect(await child.exited).toBe(0);
  const sent = createHash("sha256");
  for (const piece of bytesOf(bytes)) sent.update(piece);
  expect([total, got.digest("hex")]).toEqual([bytes, sent.digest("hex")]);
  return clientMib - clientBefore;
}

test("64 MiB pass through a run unchanged, with little memory on the way", async () => {
  // The first run also loads code.
  await passThrough(4 * MIB);
  const daemonBefore = await peakMib(appliance.pid);
  expect(await passThrough(PIPE_BYTES)).toBeLessThan(GROWTH_MIB_MAX);
  expect((await peakMib(appliance.pid)) - daemonBefore).toBeLessThan(GROWTH_MIB_MAX);
});

test("output arrives while the command runs, and its questions can be answered", async () => {
  using run = new CliProcess(appliance, [...RUN, "sh", "-c", "echo name?; read name; echo hello $name >&2; exit 3"]);
  await run.says("name?");
  run.write("sandbox\n");
  await run.says("hello sandbox");
  // Standard input is still open.
  expect(await run.ended()).toBe(3);
});

test("a sandbox has the size of its options, and its output is stored up to the limit", async () => {
  const size = ["--cpus", "2", "--memory", "600M", "--disk", "100M", "--output-limit", "12"];
  const memory = "awk '/MemTotal/ { print ($2 > 600 * 1024) }' /proc/meminfo";
  const script = `nproc; ${memory}; df -k / | awk 'END { print ($2 < 300 * 1024) }'; seq 50`;
  using run = new CliProcess(appliance, ["run", "--json", ...size, ...RUN.slice(1), "sh", "-c", script]);
  expect(await run.ended()).toBe(0);
  const { stdout } = JSON.parse(run.stdout).result;
  expect(stdout).toEqual({ content: "2\n1\n1\n1\n2\n3\n", encoding: "ascii", truncated: true });
});

test("signals reach the command, and a reader that leaves breaks the pipe", async () => {
  const script = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.1; done";
  using run = new CliProcess(appliance, [...RUN, "sh", "-c", script]);
  await run.says("ready");
  run.signal("SIGTERM");
  expect([await run.ended(), run.stdout]).toEqual([7, "ready\ncaught\n"]);

  const pipe = Bun.spawn(
    ["bash", "-c", `"$@" | head -n 1; exit \${PIPESTATUS[0]}`, "bash", ...programWords(), ...RUN, "yes"],
    {
      env: clientEnvironment(appliance),
      stdin: "ignore",
      stdout: "pipe",
    },
  );
  expect(await new Response(pipe.stdout).text()).toBe("y\n");
  expect(await pipe.exited).toBe(141);
});

test("a run that has ended does not wait for its standard input", async () => {
  using run = new CliProcess(appliance, [...RUN, "echo", "done"]);
  expect([await run.ended(), run.stdout]).toEqual([0, "done\n"]);
});
