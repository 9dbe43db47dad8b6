import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { followersPart } from "../../src/cli/bench/chatty.ts";
import { Ledger } from "../../src/cli/bench/ledger.ts";
import { memoryPart } from "../../src/cli/bench/memory.ts";
import type { Finding } from "../../src/cli/bench/row.ts";
import { checkpointPart, execPart } from "../../src/cli/bench/running.ts";
import { boxFilesPart, createPart, statesPart } from "../../src/cli/bench/sandboxes.ts";
import { chainPart } from "../../src/cli/bench/spawns.ts";
import { deadline, pause } from "../support/waiting.ts";
import { captureRows } from "./capture.ts";
import { idleRows } from "./daemon/idle.ts";
import { restartRows } from "./daemon/restart.ts";
import { densityRemarks } from "./density.ts";
import { FIGURES, machineText, readFigures, regressions, releaseOf, withRun } from "./figures.ts";
import { BenchHost } from "./host.ts";
import { importRows } from "./import.ts";
import { ingressRows } from "./ingress.ts";
import { inspectRows } from "./inspect.ts";
import { instructionRows } from "./instructions/rows.ts";
import { lineRows } from "./lines.ts";
import { networkRows } from "./network.ts";
import { pageRows } from "./page.ts";
import { rateRows } from "./rates.ts";
import { scaleRows } from "./scale.ts";
import { spawnRows } from "./spawn.ts";
import { downloadRows, uploadRows } from "./transfers.ts";
import { turnRows } from "./turns.ts";

const { values: options } = parseArgs({
  options: {
    json: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    only: { type: "string" },
    against: { type: "string" },
    record: { type: "string" },
  },
});

interface Part {
  /** yields each row as soon as it is measured */
  readonly measure: (host: BenchHost) => AsyncGenerator<Finding>;
  /** several times the duration of the full sizes on an idle machine */
  readonly secondsMax: number;
}

const figures = readFigures();
/** The figures with which this run is compared. */
const release = releaseOf(figures, { named: options.against, recorded: options.record });

/**
 * In this order: parts that start daemons of their own come first, up to the upload; then one daemon goes through all that
 * follows, up to the followers, whose memory is a row; parts that fill the store come last.
 */
const PARTS: Readonly<Record<string, Part>> = {
  idle: { measure: idleRows, secondsMax: 240 },
  turns: { measure: turnRows, secondsMax: 240 },
  instructions: { measure: (host) => instructionRows(host, release), secondsMax: 420 },
  network: { measure: networkRows, secondsMax: 420 },
  ingress: { measure: ingressRows, secondsMax: 420 },
  restart: { measure: restartRows, secondsMax: 600 },
  upload: { measure: uploadRows, secondsMax: 600 },
  spawn: { measure: spawnRows, secondsMax: 420 },
  rates: { measure: rateRows, secondsMax: 240 },
  lines: { measure: lineRows, secondsMax: 240 },
  exec: { measure: ({ target }) => execPart(target), secondsMax: 240 },
  checkpoint: { measure: ({ target }) => checkpointPart(target), secondsMax: 420 },
  files: { measure: ({ target }) => boxFilesPart(target), secondsMax: 240 },
  create: { measure: ({ target }) => createPart(target), secondsMax: 600 },
  states: { measure: ({ target }) => statesPart(target), secondsMax: 420 },
  memory: { measure: ({ target }) => memoryPart(target), secondsMax: 600 },
  inspect: { measure: inspectRows, secondsMax: 120 },
  capture: { measure: captureRows, secondsMax: 300 },
  import: { measure: importRows, secondsMax: 300 },
  download: { measure: downloadRows, secondsMax: 300 },
  density: { measure: densityRemarks, secondsMax: 900 },
  chain: { measure: ({ target }) => chainPart(target), secondsMax: 900 },
  followers: { measure: ({ target, history }) => followersPart(target, history), secondsMax: 300 },
  page: { measure: pageRows, secondsMax: 300 },
  scale: { measure: scaleRows, secondsMax: 600 },
};

/** A hanging machine must not prevent the table. */
const DISPOSAL_MS_MAX = 60_000;

const names = options.only?.split(",") ?? Object.keys(PARTS);
const unknown = names.filter((name) => PARTS[name] === undefined);
if (unknown.length > 0) {
  throw new Error(`no such part: ${unknown.join(", ")}; there are ${Object.keys(PARTS).join(", ")}`);
}

const interrupted = Promise.withResolvers<never>();
interrupted.promise.catch(() => undefined);
let stopping = false;
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.on(signal, () => {
    stopping = true;
    interrupted.reject(new Error(`stopped by ${signal}`));
  });
}

const ledger = new Ledger((line) => process.stderr.write(`${line}\n`));
const startedAt = performance.now();
let host: BenchHost | null = null;
/** null until an appliance has run a guest */
let machine: string | null = null;
for (const [name, part] of Object.entries(PARTS)) {
  if (!names.includes(name) || stopping) continue;
  const partStartedAt = performance.now();
  try {
    host ??= await Promise.race([BenchHost.start(options.quick), interrupted.promise]);
    machine ??= machineText(await host.isolation());
    await measure(part, host);
    host.passed(name);
  } catch (error) {
    ledger.fail(name, error);
    // The next part must not measure the state that this one has left.
    await dispose(host);
    host = null;
  }
  ledger.end(name, performance.now() - partStartedAt);
}
await dispose(host);
report();
// A part that was aborted may still run.
process.exit(ledger.isComplete && !stopping ? 0 : 1);

/** Prints the measurements, and records them on request. */
function report(): void {
  const { rows } = ledger.findings;
  const worse = release === null || machine === null ? [] : regressions(rows, release, machine);
  if (options.json) process.stdout.write(`${JSON.stringify({ ...ledger.findings, machine, worse }, null, 2)}\n`);
  else {
    const minutes = ((performance.now() - startedAt) / 60_000).toFixed(1);
    const lines = worse.map(({ name, text }) => `WORSE  ${name}: ${text}\n`);
    const summary =
      release === null ? "" : `${worse.length} rows are worse by more than a tenth than ${release.name}\n`;
    process.stdout.write(`${ledger.text()}${lines.join("")}${summary}measured in ${minutes} minutes\n`);
  }
  if (options.record === undefined || machine === null) return;
  const recorded = withRun(figures, { name: options.record, machine, rows });
  writeFileSync(FIGURES, `${JSON.stringify(recorded, null, 2)}\n`);
}

/** @throws Error of the part, or when it takes too long */
async function measure({ measure: findings, secondsMax }: Part, on: BenchHost): Promise<void> {
  const late = Promise.withResolvers<never>();
  using _late = deadline(secondsMax * 1000, () => late.reject(new Error(`not done within ${secondsMax} s`)));
  const iterator = findings(on);
  for (;;) {
    const step = iterator.next();
    // After the deadline its result has no handler.
    step.catch(() => undefined);
    const next = await Promise.race([step, late.promise, interrupted.promise]);
    if (next.done === true) return;
    ledger.add(next.value);
  }
}

async function dispose(used: BenchHost | null): Promise<void> {
  if (used === null) return;
  const disposal = used[Symbol.asyncDispose]().catch((error: unknown) => ledger.fail("end of the appliance", error));
  await Promise.race([disposal, pause("the appliance ends", DISPOSAL_MS_MAX)]);
}
