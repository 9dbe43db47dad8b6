import { parseArgs } from "node:util";
import { checkpointPart, execPart } from "../../src/cli/bench/beside.ts";
import { followersPart } from "../../src/cli/bench/chatty.ts";
import { Ledger } from "../../src/cli/bench/ledger.ts";
import { linesPart } from "../../src/cli/bench/lines.ts";
import { ratesPart } from "../../src/cli/bench/requests.ts";
import type { Finding } from "../../src/cli/bench/row.ts";
import { chainPart, spawnPart } from "../../src/cli/bench/spawns.ts";
import { downloadRow, makeLarge, uploadPart } from "../../src/cli/bench/transfers.ts";
import { deadline, pause } from "../support/waiting.ts";
import { captureRows } from "./capture.ts";
import { densityRemarks } from "./density.ts";
import { BenchHost } from "./host.ts";
import { idleRows } from "./idle.ts";
import { importRows } from "./import.ts";
import { inspectRows } from "./inspect.ts";
import { networkRows } from "./network.ts";
import { pageRows } from "./page.ts";
import { scaleRows } from "./scale.ts";
import { turnRows } from "./turns.ts";

const { values: options } = parseArgs({
  options: {
    json: { type: "boolean", default: false },
    quick: { type: "boolean", default: false },
    only: { type: "string" },
  },
});

interface Part {
  /** gives each row as soon as it is measured */
  readonly measure: (host: BenchHost) => AsyncGenerator<Finding>;
  /** several times what the full sizes take on an idle machine */
  readonly secondsMax: number;
}

/** In this order: parts that need an empty store come first, those that fill it last. */
const PARTS: Readonly<Record<string, Part>> = {
  idle: { measure: idleRows, secondsMax: 180 },
  spawn: { measure: ({ target }) => spawnPart(target), secondsMax: 420 },
  turns: { measure: turnRows, secondsMax: 180 },
  rates: { measure: ({ target }) => ratesPart(target), secondsMax: 240 },
  lines: { measure: ({ target }) => linesPart(target), secondsMax: 240 },
  exec: { measure: ({ target }) => execPart(target), secondsMax: 240 },
  checkpoint: { measure: ({ target }) => checkpointPart(target), secondsMax: 420 },
  network: { measure: networkRows, secondsMax: 420 },
  followers: { measure: ({ target }) => followersPart(target), secondsMax: 300 },
  inspect: { measure: inspectRows, secondsMax: 120 },
  capture: { measure: captureRows, secondsMax: 300 },
  import: { measure: importRows, secondsMax: 300 },
  download: { measure: downloadRows, secondsMax: 300 },
  upload: { measure: uploadRows, secondsMax: 600 },
  density: { measure: densityRemarks, secondsMax: 900 },
  chain: { measure: ({ target }) => chainPart(target), secondsMax: 900 },
  page: { measure: pageRows, secondsMax: 300 },
  scale: { measure: scaleRows, secondsMax: 420 },
};

async function* downloadRows({ target }: BenchHost): AsyncGenerator<Finding> {
  yield await downloadRow(target, await makeLarge(target));
  await target.deleteMade();
}

/** Every content is another one, which the appliance does not have yet. */
function uploadRows({ target, quick }: BenchHost): AsyncGenerator<Finding> {
  return uploadPart(target, { sizeMib: quick ? 512 : 2048, head: () => crypto.randomUUID() });
}

/** A hanging machine must not prevent the table. */
const DISPOSAL_MS_MAX = 60_000;

const wanted = options.only?.split(",") ?? Object.keys(PARTS);
const unknown = wanted.filter((name) => PARTS[name] === undefined);
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
for (const [name, part] of Object.entries(PARTS)) {
  if (!wanted.includes(name) || stopping) continue;
  const partStartedAt = performance.now();
  try {
    host ??= await Promise.race([BenchHost.start(options.quick), interrupted.promise]);
    await measure(part, host);
  } catch (error) {
    ledger.fail(name, error);
    // The next part must not measure the state that this one has left.
    await dispose(host);
    host = null;
  }
  ledger.end(name, performance.now() - partStartedAt);
}
await dispose(host);
const minutes = ((performance.now() - startedAt) / 60_000).toFixed(1);
process.stdout.write(options.json ? `${ledger.json()}\n` : `${ledger.text()}measured in ${minutes} minutes\n`);
// A part that was given up may still be at it.
process.exit(ledger.isComplete && !stopping ? 0 : 1);

/** @throws Error of the part, or when it takes too long */
async function measure({ measure: findings, secondsMax }: Part, on: BenchHost): Promise<void> {
  const late = Promise.withResolvers<never>();
  using _late = deadline(secondsMax * 1000, () => late.reject(new Error(`not done within ${secondsMax} s`)));
  const iterator = findings(on);
  for (;;) {
    const step = iterator.next();
    // After the deadline nobody handles its result.
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
