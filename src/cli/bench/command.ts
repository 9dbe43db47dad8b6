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
import { configOf, DATA_OPTIONS } from "../config-options.ts";
import type { Io } from "../io.ts";
import { interruptible, showProgress } from "../wait.ts";
import { checkpointPart, execPart } from "./beside.ts";
import { followersPart } from "./chatty.ts";
import { Ledger } from "./ledger.ts";
import { linesPart } from "./lines.ts";
import { looksPart, ratesPart } from "./requests.ts";
import { type Finding, missing } from "./row.ts";
import { chainPart, idlePart, spawnPart } from "./spawns.ts";
import { BenchTarget, type TargetOptions } from "./target.ts";
import { largePart, uploadPart } from "./transfers.ts";

type Part = (target: BenchTarget) => AsyncGenerator<Finding>;

/** Always the same bytes, which an appliance keeps once however often they come. */
const UPLOAD = { sizeMib: 256, head: () => "coppice bench" };

/** In this order: what wants an appliance that has rested comes first. */
const PARTS: Readonly<Record<string, Part>> = {
  async *idle(target) {
    yield* idlePart(target);
    yield missing("start of the daemon", "it would have to be ended for that; `make bench` starts one of its own");
  },
  spawn: spawnPart,
  async *looks(target) {
    yield* looksPart(target);
    const text = "that takes a store of its own; `make bench` fills one";
    yield missing("listing with 1,000,000 operations against 1,000", text);
  },
  rates: ratesPart,
  lines: linesPart,
  exec: execPart,
  checkpoint: checkpointPart,
  followers: followersPart,
  large: largePart,
  async *import() {
    const text = "what was imported before is not imported again; `make bench` imports images that it makes";
    yield missing("import, against skopeo, umoci and mkfs alone", text);
  },
  upload: (target) => uploadPart(target, UPLOAD),
  chain: chainPart,
};

export const benchCommand: Command = command({
  name: "bench",
  summary: "measure a running appliance from outside",
  synopsis: "--image IMAGE [OPTIONS]",
  description:
    "Takes the measurements of `make bench`, as far as a running appliance allows, and prints each beside its\n" +
    "comparison from the same run. It says why the other measurements are missing. Cold boots and the bare route\n" +
    "need the data directory, so run this as root on the appliance's machine, while other clients rest. The image\n" +
    "needs /bin/sh, cat, dd, mknod and sleep. Images that this command makes are deleted again; operations stay\n" +
    "listed, and one uploaded file of 256 MiB, always the same, stays. The exit code is 1 when a figure misses its\n" +
    `bar. Parts: ${Object.keys(PARTS).join(", ")}.`,
  examples: ["coppice bench --image tag:debian --quick", "coppice bench --image tag:debian --only spawn,chain --json"],
  options: {
    image: { type: "string", value: "IMAGE", doc: "uuid, or tag:NAME" },
    quick: { type: "boolean", doc: "smaller sizes and fewer rounds: five minutes instead of twenty" },
    only: { type: "string", value: "PARTS", doc: "some of the parts, with commas between them" },
    rounds: { type: "string", value: "COUNT", doc: "rounds of each measurement, instead of its default" },
    ...JSON_OPTION,
    ...DATA_OPTIONS,
    ...CLIENT_OPTIONS,
  },
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    if (options.image === undefined) throw new UsageError("--image is missing");
    const { url, config, "data-dir": dataDir, quick = false } = options;
    const parts = partsOf(options.only);
    const rounds = integerOption("rounds", options.rounds, 1);
    const client = openClient(environment, url);
    const image = await imageIdOf(client, options.image);
    await answerOf(client.v1.images({ uuid: image }).get());
    // Loaded only here: no other command of the client needs machines.
    const local = await import("./host.ts");
    const target = {
      client,
      image,
      quick,
      rounds,
      config: configOf({ config, "data-dir": dataDir }, environment),
      local,
    };
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

/** A part that fails does not keep the others back. */
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
