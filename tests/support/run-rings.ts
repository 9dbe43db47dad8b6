/**
 * Runs rings of tests one after the other and prints at the end, alone on a line, `N passed, N failed`.
 * Usage: bun tests/support/run-rings.ts [RING…]   (no ring: all of them but those that take long)
 */
import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { countTests, forbiddenSkips, type TestCounts } from "./test-counts.ts";
import { deadline } from "./waiting.ts";

const ROOT = resolve(import.meta.dir, "../..");
const EXECUTABLE = "dist/coppice";

interface Ring {
  readonly what: string;
  /** files of tests, as patterns */
  readonly paths: readonly string[];
  readonly except?: RegExp;
  /** is loaded before the tests */
  readonly preload?: string;
  /** is put before the command line of the tests */
  readonly within?: string;
  /** commands that count as a test each, and run before the others */
  readonly commands?: readonly (readonly string[])[];
  /** against the built executable, not the sources */
  readonly executable?: boolean;
  /** further environment; what the caller sets wins */
  readonly environment?: Readonly<Record<string, string>>;
  /** runs only when it is named */
  readonly takesLong?: boolean;
  /** the whole ring is killed after this many `milliseconds` */
  readonly limitMs: number;
}

const MINUTE_MS = 60_000;
/** Of a test that sets none: a loaded machine must not fail one that takes a second elsewhere. */
const TEST_MS_MAX = MINUTE_MS;
/** Of a line that tells what failed. */
const FAILURE_CHARACTERS_MAX = 900;

/** Damaged frames and streams of indexes, as the host reads them. */
const STREAM_FUZZ = [
  "tests/unit/vm/agent.test.ts",
  "tests/unit/vm/frames.test.ts",
  "tests/unit/storage/hostile-index.test.ts",
  "tests/unit/storage/index-properties.test.ts",
];

const RINGS: Readonly<Record<string, Ring>> = {
  check: {
    what: "types, style, and the rules of the source",
    commands: [
      // Types are those of the modules that the lock names, which must fit package.json.
      [process.execPath, "install", "--frozen-lockfile", "--silent"],
      ["biome", "check", "--error-on-warnings", "."],
      [process.execPath, "check"],
      [process.execPath, "check", "-p", "src/web"],
    ],
    paths: ["tests/tidy.test.ts"],
    limitMs: 5 * MINUTE_MS,
  },
  unit: {
    what: "the logic of the parts: nothing starts a program, and nothing listens",
    paths: ["tests/unit/**/*.test.ts"],
    preload: "./tests/support/unit-only.ts",
    limitMs: 10 * MINUTE_MS,
  },
  parts: {
    what: "the parts that start programs or talk over sockets, with real ones",
    paths: ["tests/parts/**/*.test.ts"],
    limitMs: 10 * MINUTE_MS,
  },
  agent: {
    what: "the guest agent under sanitizers",
    commands: [["make", "-s", "-C", "vm-assets/agent", "native"]],
    paths: ["tests/agent/**/*.test.ts"],
    limitMs: 10 * MINUTE_MS,
  },
  api: {
    what: "the HTTP contract, from source",
    commands: [
      ["make", "-s", "-C", "vm-assets/agent", "native"],
      [process.execPath, "src/tools/web.ts"],
    ],
    paths: ["tests/api/**/*.test.ts"],
    except: /\/dist[^/]*$/,
    limitMs: 15 * MINUTE_MS,
  },
  dist: {
    what: "the HTTP contract and the program, from the executable",
    paths: ["tests/api/**/*.test.ts"],
    executable: true,
    limitMs: 15 * MINUTE_MS,
  },
  system: {
    what: "real registry, tools, VMs and crashes",
    paths: ["tests/system/**/*.test.ts"],
    executable: true,
    limitMs: 60 * MINUTE_MS,
  },
  contree: {
    what: "the wire of the public ConTree clients, with real images",
    paths: ["tests/contree/**/*.test.ts"],
    executable: true,
    limitMs: 20 * MINUTE_MS,
  },
  network: {
    what: "the network of guests: real programs in a real Debian, and attacks on the rules",
    commands: [[process.execPath, "tests/support/network/build-guest.ts"]],
    paths: ["tests/network/**/*.test.ts"],
    within: "tests/support/network/alone.sh",
    preload: "./tests/support/network/preload.ts",
    executable: true,
    limitMs: 30 * MINUTE_MS,
  },
  page: {
    what: "the page, in a real browser before a real appliance",
    paths: ["tests/page/**/*.test.ts"],
    executable: true,
    limitMs: 30 * MINUTE_MS,
  },
  faults: {
    what: "kills, full disks, lies, slow clients and jumps of the clock, under load",
    paths: ["tests/faults/**/*.test.ts"],
    executable: true,
    limitMs: 30 * MINUTE_MS,
  },
  install: {
    what: "the service, installed in a booted system",
    paths: ["tests/install/**/*.test.ts"],
    executable: true,
    limitMs: 5 * MINUTE_MS,
  },
  debian: {
    what: "the service on Debian, in an emulated machine",
    paths: ["tests/debian/**/*.test.ts"],
    executable: true,
    takesLong: true,
    limitMs: 90 * MINUTE_MS,
  },
  soak: {
    what: "random captures, thousands of them",
    paths: ["tests/system/capture.test.ts"],
    environment: { COPPICE_TEST_STEPS: "2000", COPPICE_TEST_SEED: String(Date.now() % 2 ** 31) },
    executable: true,
    takesLong: true,
    limitMs: 240 * MINUTE_MS,
  },
  "soak-faults": {
    what: "an hour of faults, and every fuzz with another seed",
    commands: [["make", "-s", "-C", "vm-assets/agent", "native"]],
    paths: ["tests/faults/**/*.test.ts", "tests/api/fuzz.test.ts", "tests/agent/fuzz.test.ts", ...STREAM_FUZZ],
    environment: {
      COPPICE_TEST_FAULT_SECONDS: "3600",
      COPPICE_TEST_FAULT_KILLS: "200",
      COPPICE_TEST_ARCHIVES: "1000",
      COPPICE_FUZZ_COUNT: "2000",
      COPPICE_TEST_SEED: String(Date.now() % 2 ** 31),
    },
    executable: true,
    takesLong: true,
    limitMs: 240 * MINUTE_MS,
  },
};

const bold = (text: string): string => (process.stdout.isTTY ? `\x1b[1m${text}\x1b[0m` : text);
const say = (text: string): void => void process.stdout.write(`${text}\n`);

/** Runs one ring, its output passing through as it comes. */
async function runRing(name: string, ring: Ring): Promise<TestCounts> {
  say(bold(`\n== ${name}: ${ring.what}`));
  if (ring.executable === true && !existsSync(join(ROOT, EXECUTABLE))) {
    say(`${EXECUTABLE} is missing: make build`);
    return { passed: 0, failed: 1, skipped: [], failures: [`${EXECUTABLE} is missing`] };
  }
  const endsAt = performance.now() + ring.limitMs;
  const commands = { passed: 0, failed: 0 };
  const failures: string[] = [];
  for (const argv of ring.commands ?? []) {
    const { code } = await runProgram(argv, ring, endsAt);
    commands[code === 0 ? "passed" : "failed"] += 1;
    const command = argv.join(" ").replace(process.execPath, "bun");
    if (code !== 0) failures.push(command);
    say(`${code === 0 ? "(pass)" : "(fail)"} ${command}`);
  }
  const files = ring.paths
    .flatMap((pattern) => [...new Bun.Glob(pattern).scanSync(ROOT)])
    .filter((path) => ring.except?.test(path) !== true)
    .sort();
  if (files.length === 0) {
    say(`${name} has no test`);
    return { ...commands, failed: commands.failed + 1, skipped: [], failures: [...failures, "no test"] };
  }
  const preload = ring.preload === undefined ? [] : [`--preload=${ring.preload}`];
  const within = ring.within === undefined ? [] : [ring.within];
  const test = [process.execPath, "test", `--timeout=${TEST_MS_MAX}`, ...preload];
  const { code, output } = await runProgram([...within, ...test, ...files.map((path) => `./${path}`)], ring, endsAt);
  const counts = judge(countTests(output), code);
  return {
    ...counts,
    passed: counts.passed + commands.passed,
    failed: counts.failed + commands.failed,
    failures: [...failures, ...counts.failures],
  };
}

/** Runs a program in a session of its own, so that the deadline ends whatever it has started. */
async function runProgram(
  argv: readonly string[],
  ring: Ring,
  endsAt: number,
): Promise<{ code: number; output: string }> {
  const child = Bun.spawn([...argv], {
    cwd: ROOT,
    env: environment(ring),
    stdin: "ignore",
    stdout: "inherit",
    stderr: "pipe",
    detached: true,
  });
  const stop = (): void => endGroup(child.pid);
  using _late = deadline(endsAt - performance.now(), () => {
    say(`${argv.join(" ")} did not end in time`);
    stop();
  });
  process.on("SIGINT", stop).on("SIGTERM", stop);
  let output = "";
  const decoder = new TextDecoder();
  for await (const chunk of child.stderr) {
    process.stderr.write(chunk);
    output += decoder.decode(chunk, { stream: true });
  }
  const code = await child.exited;
  process.off("SIGINT", stop).off("SIGTERM", stop);
  return { code, output };
}

/** A ring that crashed, ran nothing, or skipped what it must not skip has failed, whatever its tests say. */
function judge(counts: TestCounts, code: number): TestCounts {
  let failed = counts.failed;
  const failures = [...counts.failures];
  if (counts.passed + counts.failed === 0) {
    failures.push("no test ran");
    failed += 1;
  } else if (code !== 0 && failed === 0) {
    failures.push(`ended with exit code ${code}`);
    failed += 1;
  }
  const skipped = forbiddenSkips(counts.skipped);
  if (process.env["CI"] === "true" && skipped.length > 0) {
    failures.push(...skipped.map((test) => `${test}: skipped, which CI does not allow`));
    failed += skipped.length;
  }
  return { ...counts, failed, failures };
}

function environment(ring: Ring): Record<string, string | undefined> {
  const { COPPICE_TEST_EXECUTABLE: _, ...rest } = process.env;
  const own = { PATH: `${resolve(process.execPath, "..")}:${process.env["PATH"]}`, FORCE_COLOR: "0" };
  return {
    ...ring.environment,
    ...rest,
    ...own,
    ...(ring.executable === true ? { COPPICE_TEST_EXECUTABLE: join(ROOT, EXECUTABLE) } : {}),
  };
}

function endGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch (error) {
    // ESRCH: it has ended by itself in this moment.
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

const names =
  Bun.argv.length > 2 ? Bun.argv.slice(2) : Object.keys(RINGS).filter((name) => RINGS[name]?.takesLong !== true);
const total = { passed: 0, failed: 0 };
const lines: string[] = [];
for (const name of names) {
  const ring = RINGS[name];
  if (ring === undefined) throw new Error(`there is no ring ${name}; there are ${Object.keys(RINGS).join(", ")}`);
  const startedAt = performance.now();
  const { passed, failed, skipped, failures } = await runRing(name, ring);
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);
  const also = skipped.length > 0 ? `, ${skipped.length} skipped` : "";
  lines.push(`  ${name.padEnd(8)} ${passed} passed, ${failed} failed${also} (${seconds} s)`);
  lines.push(...failures.map((failure) => `    ${failure.slice(0, FAILURE_CHARACTERS_MAX)}`));
  total.passed += passed;
  total.failed += failed;
}
say(bold("\n== rings"));
say(lines.join("\n"));
say(`\n${total.passed} passed, ${total.failed} failed`);
process.exitCode = total.failed === 0 ? 0 : 1;
