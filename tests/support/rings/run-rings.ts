/**
 * Runs rings of tests and prints at the end, alone on a line, `N passed, N failed`.
 * Usage: bun tests/support/rings/run-rings.ts [RING…]   (no ring: all except the long ones)
 * Named rings run one after the other, and their output passes through. Without names, COPPICE_TEST_LANES (default 2) rings run
 * at a time, since they mostly wait; the output of each is printed as a whole when it ends.
 */
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { deadline } from "../waiting.ts";
import { RINGS, type Ring } from "./rings.ts";
import { countTests, forbiddenSkips, type TestCounts } from "./test-counts.ts";

const ROOT = resolve(import.meta.dir, "../../..");
const EXECUTABLE = "dist/coppice";
/** Number of rings that run at the same time. */
const LANES_COUNT = Number(process.env["COPPICE_TEST_LANES"] ?? 2);
/** Tests compare the mounts before and after, so each ring has its own. */
const OWN_MOUNTS = ["unshare", "--mount", "--"];
/** For a test that sets none: a loaded machine must not fail a test that takes a second elsewhere. */
const TEST_MS_MAX = 60_000;
/** For output that a program wrote before it ended. */
const DRAIN_MS = 5000;
/** Of a line about a failure. */
const FAILURE_CHARACTERS_MAX = 400;

const bold = (text: string): string => (process.stdout.isTTY ? `\x1b[1m${text}\x1b[0m` : text);
const say = (text: string): void => void process.stdout.write(`${text}\n`);
const secondsSince = (startedAt: number): string => ((performance.now() - startedAt) / 1000).toFixed(1);

/** Accepts the output of a ring, one or more lines at a time. */
type Print = (output: string | Uint8Array) => void;

interface RingResult extends TestCounts {
  readonly name: string;
  readonly seconds: string;
}

/** Running programs: an interrupt ends them, and no more are started. */
const running = new Set<() => void>();
let isInterrupted = false;
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.on(signal, () => {
    isInterrupted = true;
    for (const stop of running) stop();
  });
}

/** A ring that could not run. */
function failed(why: string, print: Print): TestCounts {
  print(`${why}\n`);
  return { passed: 0, failed: 1, skipped: [], failures: [why] };
}

/** Runs one ring to its end. @param within prefix of the command line of its tests */
async function runRing(name: string, ring: Ring, print: Print, within: readonly string[]): Promise<TestCounts> {
  print(`${bold(`\n== ${name}: ${ring.what}`)}\n`);
  if (ring.executable === true && !existsSync(join(ROOT, EXECUTABLE))) {
    return failed(`${EXECUTABLE} is missing: make build`, print);
  }
  const endsAt = performance.now() + ring.limitMs;
  const commands = { passed: 0, failed: 0 };
  const failures: string[] = [];
  for (const argv of ring.commands ?? []) {
    const { code } = await runProgram(argv, ring, endsAt, print);
    commands[code === 0 ? "passed" : "failed"] += 1;
    const command = argv.join(" ").replace(process.execPath, "bun");
    if (code !== 0) failures.push(command);
    print(`${code === 0 ? "(pass)" : "(fail)"} ${command}\n`);
  }
  const files = ring.paths
    .flatMap((pattern) => [...new Bun.Glob(pattern).scanSync(ROOT)])
    .filter((path) => ring.except?.test(path) !== true)
    .sort();
  if (files.length === 0) return failed(`${name} has no test`, print);
  const preload = ring.preload === undefined ? [] : [`--preload=${ring.preload}`];
  const test = [process.execPath, "test", `--timeout=${TEST_MS_MAX}`, ...preload];
  const argv = [
    ...within,
    ...(ring.within === undefined ? [] : [ring.within]),
    ...test,
    ...files.map((path) => `./${path}`),
  ];
  const { code, output } = await runProgram(argv, ring, endsAt, print);
  const counts = judge(countTests(output), code);
  return {
    ...counts,
    passed: counts.passed + commands.passed,
    failed: counts.failed + commands.failed,
    failures: [...failures, ...counts.failures],
  };
}

/**
 * Runs a program in its own session, so that the deadline ends all processes that it has started.
 * @returns its exit code and standard error
 */
async function runProgram(
  argv: readonly string[],
  ring: Ring,
  endsAt: number,
  print: Print,
): Promise<{ code: number; output: string }> {
  if (isInterrupted) return { code: 1, output: "" };
  const child = Bun.spawn([...argv], {
    cwd: ROOT,
    env: environment(ring),
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
    detached: true,
  });
  const stop = (): void => endGroup(child.pid);
  running.add(stop);
  using _late = deadline(endsAt - performance.now(), () => {
    print(`${argv.join(" ")} did not end in time\n`);
    stop();
  });
  let output = "";
  const decoder = new TextDecoder();
  const passOn = async (stream: ReadableStream<Uint8Array>, isKept: boolean): Promise<void> => {
    for await (const chunk of stream) {
      print(chunk);
      if (isKept) output += decoder.decode(chunk, { stream: true });
    }
  };
  const passed = Promise.all([passOn(child.stdout, false), passOn(child.stderr, true)]);
  const code = await child.exited;
  // A process that outlives its test may hold the pipes open.
  const { promise: drained, resolve: drain } = Promise.withResolvers<void>();
  using _drained = deadline(DRAIN_MS, drain);
  await Promise.race([passed, drained]);
  running.delete(stop);
  return { code, output };
}

/** A ring that crashed, ran no test, or skipped a required one has failed, even when its tests passed. */
function judge(counts: TestCounts, code: number): TestCounts {
  const problems: string[] = [];
  if (counts.passed + counts.failed === 0) problems.push(`no test ran: it ended with exit code ${code}`);
  else if (code !== 0 && counts.failed === 0) problems.push(`ended with exit code ${code}`);
  const isCi = process.env["CI"] === "true";
  problems.push(...forbiddenSkips(counts.skipped, isCi).map(({ name, why }) => `${name}: skipped, ${why}`));
  return { ...counts, failed: counts.failed + problems.length, failures: [...counts.failures, ...problems] };
}

function environment(ring: Ring): Record<string, string | undefined> {
  const { COPPICE_TEST_EXECUTABLE: _, ...rest } = process.env;
  const own = { PATH: `${resolve(process.execPath, "..")}:${process.env["PATH"]}`, FORCE_COLOR: "0" };
  return {
    ...ring.environment,
    ...rest,
    ...own,
    COPPICE_TEST_SHARED: shared,
    ...(ring.executable === true ? { COPPICE_TEST_EXECUTABLE: join(ROOT, EXECUTABLE) } : {}),
  };
}

function endGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch (error) {
    // ESRCH: it has ended by itself at this moment.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

/** Runs rings: each free lane starts the next one. */
async function runRings(names: readonly string[], lanes: number): Promise<RingResult[]> {
  const waiting = [...names];
  const results: RingResult[] = [];
  const lane = async (): Promise<void> => {
    for (let name = waiting.shift(); name !== undefined && !isInterrupted; name = waiting.shift()) {
      const startedAt = performance.now();
      const kept: (string | Uint8Array)[] = [];
      const print = lanes > 1 ? (output: string | Uint8Array) => void kept.push(output) : write;
      if (lanes > 1) say(`${name} begins`);
      const counts = await runRing(name, ringOf(name), print, lanes > 1 ? OWN_MOUNTS : []).catch((error: Error) =>
        failed(String(error), print),
      );
      for (const output of kept) write(output);
      results.push({ ...counts, name, seconds: secondsSince(startedAt) });
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
  return results;
}

function write(output: string | Uint8Array): void {
  process.stdout.write(output);
}

function ringOf(name: string): Ring {
  const ring = RINGS[name];
  if (ring === undefined) throw new Error(`there is no ring ${name}; there are ${Object.keys(RINGS).join(", ")}`);
  return ring;
}

/** Lines of the summary of a ring, without its failures. */
function summaryOf({ name, passed, failed, seconds, skipped }: RingResult): string[] {
  const also = skipped.length > 0 ? `, ${skipped.length} skipped` : "";
  const byNeed = Map.groupBy(skipped, ({ needs }) => needs ?? "what it does not say");
  return [
    `  ${name.padEnd(8)} ${passed} passed, ${failed} failed${also} (${seconds} s)`,
    ...[...byNeed].map(([needs, tests]) => `    ${tests.length} skipped, as they need ${needs}`),
  ];
}

/** Lines of the failures of a ring, which come last: often only the end of a long output is kept. */
function failuresOf({ name, failures }: RingResult): string[] {
  return failures.map((failure) => `failed in ${name}: ${failure.slice(0, FAILURE_CHARACTERS_MAX)}`);
}

const startedAt = performance.now();
const named = Bun.argv.slice(2);
const all = Object.keys(RINGS).filter((name) => ringOf(name).takesLong !== true);
const isAlone = (name: string): boolean => ringOf(name).alone === true;
/** Verdicts and other files of this run's appliances for later ones. */
const shared = await mkdtemp(join(tmpdir(), "coppice-tests-"));
const results =
  named.length > 0
    ? await runRings(named, 1)
    : [
        ...(await runRings(
          all.filter((name) => !isAlone(name)),
          LANES_COUNT,
        )),
        ...(await runRings(all.filter(isAlone), 1)),
      ];
await rm(shared, { recursive: true });
const sum = (of: "passed" | "failed"): number => results.reduce((total, counts) => total + counts[of], 0);
say(bold(`\n== rings (${secondsSince(startedAt)} s)`));
say(results.flatMap(summaryOf).join("\n"));
for (const failure of results.flatMap(failuresOf)) say(failure);
if (isInterrupted) say("interrupted: not every ring has run");
say(`\n${sum("passed")} passed, ${sum("failed")} failed`);
process.exitCode = sum("failed") === 0 && !isInterrupted ? 0 : 1;
