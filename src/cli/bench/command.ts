import { answerOf } from "../../client/client.ts";
import { imageIdOf } from "../../client/transfers.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import {
  type Command,
  command,
  EXIT_FAILED,
  expectPositionals,
  integerOption,
  JSON_OPTION,
  UsageError,
} from "../command.ts";
import type { Io } from "../io.ts";
import { interruptible, showProgress } from "../wait.ts";
import { followersPart } from "./chatty.ts";
import { Ledger } from "./ledger.ts";
import { linesPart } from "./lines.ts";
import { memoryPart } from "./memory.ts";
import { looksPart, ratesPart } from "./requests.ts";
import type { Finding } from "./row.ts";
import { checkpointPart, execPart } from "./running.ts";
import { boxFilesPart, createPart, statesPart } from "./sandboxes.ts";
import { chainPart, idlePart, spawnPart } from "./spawns.ts";
import { BenchTarget, type TargetOptions } from "./target.ts";
import { largePart, uploadPart } from "./transfers.ts";

type Part = (target: BenchTarget) => AsyncGenerator<Finding>;

/** In this order: the parts that need a rested appliance are first. */
const PARTS: Readonly<Record<string, Part>> = {
  idle: (target) => idlePart(target),
  spawn: spawnPart,
  looks: looksPart,
  rates: ratesPart,
  lines: linesPart,
  exec: execPart,
  checkpoint: checkpointPart,
  files: boxFilesPart,
  create: createPart,
  states: statesPart,
  memory: memoryPart,
  followers: (target) => followersPart(target),
  large: largePart,
  upload: uploadPart,
  chain: chainPart,
};

const NAMES = Object.keys(PARTS);
/** Number of names in the first of two lines of help. */
const FIRST_LINE_COUNT = 8;

export const benchCommand: Command = command({
  name: "bench",
  summary: "measure a running appliance from outside",
  synopsis: "--image IMAGE [OPTIONS]",
  description:
    "Measures an appliance on its machine: spawns, running instances, reads of images, transfers,\n" +
    "chains of images, and the memory of the daemon. Figures that can be compared with others of the\n" +
    "same appliance have a bar, and the exit code is 1 when one misses it. Other times depend on the\n" +
    "machine and have no bar. Run this on the appliance's machine, while other clients are idle. The\n" +
    "image needs /bin/sh, cat, dd and sleep. Images that this command makes are deleted; operations\n" +
    "stay listed, and one uploaded file of 256 MiB, always the same, stays.\n" +
    `Parts:\n${NAMES.slice(0, FIRST_LINE_COUNT).join(", ")},\n${NAMES.slice(FIRST_LINE_COUNT).join(", ")}.`,
  examples: ["coppice bench --image tag:debian --quick", "coppice bench --image tag:debian --only spawn,chain --json"],
  options: {
    image: { type: "string", value: "IMAGE", doc: "image UUID, or tag:NAME" },
    quick: { type: "boolean", doc: "smaller sizes and fewer rounds: five minutes instead of twenty" },
    only: { type: "string", value: "PARTS", doc: "some of the parts, with commas between them" },
    rounds: { type: "string", value: "COUNT", doc: "rounds of each measurement, instead of its default" },
    ...JSON_OPTION,
    ...CLIENT_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    if (options.image === undefined) throw new UsageError("--image is missing");
    const { url, quick = false } = options;
    const parts = partsOf(options.only);
    const rounds = integerOption("rounds", options.rounds, 1);
    const client = openClient(environment, url);
    const image = await imageIdOf(client, options.image);
    await answerOf(client.v1.images({ uuid: image }).get());
    const target = { client, image, quick, rounds };
    const ledger = await interruptible(io, (signal) => measure(io, parts, { ...target, signal }));
    await io.stdout(options.json === true ? `${ledger.json()}\n` : ledger.text());
    return ledger.isComplete && ledger.findings.rows.every(({ holds }) => holds) ? 0 : EXIT_FAILED;
  },
});

function partsOf(only: string | undefined): [string, Part][] {
  const names = only?.split(",") ?? Object.keys(PARTS);
  return names.map((name) => {
    const part = PARTS[name];
    if (part === undefined) throw new UsageError(`--only: there is no part ${name}`);
    return [name, part];
  });
}

/** Runs the parts; one that fails does not stop the others. */
async function measure(io: Io, parts: readonly [string, Part][], options: TargetOptions): Promise<Ledger> {
  const ledger = new Ledger(() => undefined);
  using progress = showProgress(io, "measuring");
  await using target = new BenchTarget(options);
  for (const [name, part] of parts) {
    progress.note(name);
    const startedAt = performance.now();
    try {
      for await (const finding of part(target)) ledger.add(finding);
    } catch (error) {
      options.signal.throwIfAborted();
      ledger.fail(name, error);
    }
    ledger.end(name, performance.now() - startedAt);
  }
  return ledger;
}
