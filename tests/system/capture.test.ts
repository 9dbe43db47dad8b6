/**
 * Random operations in machines, and three views of every image that they leave: a walk in a fresh machine, the
 * inspection without one, and a model. COPPICE_TEST_STEPS sets the number of steps, COPPICE_TEST_SEED replays one run.
 * A step is one machine: it walks the image that it starts from, which a former machine left, applies about a hundred
 * operations, and walks what its program sees then.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { Appliance } from "../support/appliance.ts";
import { Generator } from "../support/capture-generator.ts";
import { Inspector, listedLine } from "../support/capture-inspect.ts";
import { Model, type Operation } from "../support/capture-model.ts";
import { type ProgramRun, runProgram, scriptLine, uploadProgram } from "../support/capture-program.ts";
import { adoptTimes, differences, type View, viewOfModel, withoutIdentity } from "../support/capture-view.ts";
import { pushBusybox } from "../support/images.ts";
import { seededRandom } from "../support/random.ts";
import { Registry } from "../support/registry.ts";

const STEPS_DEFAULT = 100;
const OPERATIONS_COUNT = 100;
/** Deeper images are walked, but nothing is built on them: attaching many layers is tested elsewhere. */
const DEPTH_MAX = 24;
const DOWNLOADS_COUNT = 6;
const LISTS_COUNT = 12;
const DOWNLOAD_BYTES_MAX = 1_048_576;
const STEP_MS_MAX = 20_000;

const steps = Number(process.env["COPPICE_TEST_STEPS"] ?? STEPS_DEFAULT);
const seed = Number(process.env["COPPICE_TEST_SEED"] ?? Date.now() % 2 ** 31);
const directory = "/t";

interface Known {
  readonly id: string;
  readonly model: Model;
  readonly depth: number;
}

let registry: Registry;
let appliance: Appliance;
let inspector: Inspector;
let first: Known;

beforeAll(async () => {
  registry = await Registry.start();
  appliance = await Appliance.start({ registries: [registry.host] });
  inspector = new Inspector(appliance);
  const base = await appliance.importImage(await pushBusybox(registry, "busybox:1"));
  const files = await uploadProgram(appliance);
  const operations: Operation[] = [["mkdir", directory, 0o755]];
  const run = await runProgram(appliance, base, { directory, operations, request: { files } });
  const model = new Model(directory);
  adoptTimes(model, run.after, { from: 0n, to: 2n ** 63n });
  first = { id: run.image, model: model.captured(), depth: 2 };
}, 120_000);

afterAll(async () => {
  inspector[Symbol.dispose]();
  await appliance[Symbol.asyncDispose]();
  await registry[Symbol.asyncDispose]();
}, 60_000);

const say = (text: string): void => void process.stderr.write(`capture: ${text}\n`);
const random = seededRandom(seed);
const generator = new Generator(random);

function expectSame(what: string, wanted: View, found: View): void {
  const different = differences(wanted, found);
  if (different.length > 0) throw new Error(`${what} (seed ${seed}):\n${different.join("\n")}`);
}

/** Applies operations to the model as they are generated, and gives them with the errors that are to come. */
function generate(model: Model): { operations: Operation[]; errors: number[] } {
  const operations: Operation[] = [];
  const errors: number[] = [];
  while (operations.length < OPERATIONS_COUNT) {
    for (const operation of generator.next(model)) {
      operations.push(operation);
      errors.push(model.apply(operation));
    }
  }
  return { operations, errors };
}

async function checkHttp(image: string, view: View): Promise<void> {
  const paths = [...view].filter(([, seen]) => seen.type === "d").map(([path]) => path);
  for (let count = 0; count < LISTS_COUNT; count++) {
    const path = paths[random.below(paths.length)] as string;
    const below = [...view].filter(([child]) => child.slice(0, child.lastIndexOf("/")) === path);
    const wanted = below.map(([child, seen]) => [child.slice(path.length + 1), listedLine(seen)] as const);
    expect(Object.fromEntries(await inspector.list(image, path))).toEqual(Object.fromEntries(wanted));
  }
  const files = [...view].filter(([, seen]) => seen.type === "f");
  for (let count = 0; count < DOWNLOADS_COUNT && files.length > 0; count++) {
    const [path, { size }] = files[random.below(files.length)] as (typeof files)[number];
    await checkDownload(image, path, size);
    expect(await inspector.exists(image, path)).toBe(true);
    expect(await inspector.exists(image, `${path.slice(0, path.lastIndexOf("/"))}/absent`)).toBe(false);
  }
}

async function checkDownload(image: string, path: string, size: number): Promise<void> {
  const content = contents.get(image)?.get(path);
  if (content === undefined || size === 0) return;
  const start = size > DOWNLOAD_BYTES_MAX ? Math.max(0, size - DOWNLOAD_BYTES_MAX) : 0;
  const found = await inspector.download(image, path, size > DOWNLOAD_BYTES_MAX ? { start, end: size } : undefined);
  expect(Buffer.compare(found, content(start, size))).toBe(0);
}

/** Bytes of the files of an image, as the model has them. */
const contents = new Map<string, Map<string, (start: number, end: number) => Buffer>>();

function rememberContents(image: string, model: Model): void {
  contents.clear();
  const files = new Map<string, (start: number, end: number) => Buffer>();
  for (const [path, node] of model.entries()) {
    if (node.type === "f") files.set(path, (start, end) => node.content.slice(start, end));
  }
  contents.set(image, files);
}

async function step(parent: Known): Promise<Known> {
  const model = parent.model.captured();
  const { operations, errors } = generate(model);
  const from = BigInt(Date.now()) * 1_000_000n;
  let run: ProgramRun;
  try {
    run = await runProgram(appliance, parent.id, { directory, operations });
  } catch (error) {
    throw new Error(`seed ${seed}: ${(error as Error).message}\n${operations.map(scriptLine).join("")}`);
  }
  expectSame(
    "a fresh machine sees another image than the one that was captured",
    viewOfModel(parent.model),
    run.before,
  );
  const unlike = operations.flatMap((operation, at) =>
    run.results[at] === errors[at] ? [] : [`${scriptLine(operation).trim()}: ${errors[at]}, not ${run.results[at]}`],
  );
  if (unlike.length > 0)
    throw new Error(`operations end unlike the model's (seed ${seed}):\n${unlike.slice(0, 10).join("\n")}`);
  const wrong = adoptTimes(model, run.after, { from, to: BigInt(Date.now()) * 1_000_000n });
  if (wrong.length > 0) throw new Error(`times that no clock gave (seed ${seed}):\n${wrong.join("\n")}`);
  const wanted = viewOfModel(model);
  expectSame("the program saw what the model does not have", withoutIdentity(wanted), withoutIdentity(run.after));
  expectSame("inspection shows another image", wanted, await inspector.view(run.image, directory));
  rememberContents(run.image, model);
  await checkHttp(run.image, wanted);
  return { id: run.image, model: model.captured(), depth: parent.depth + (run.image === parent.id ? 0 : 1) };
}

test(
  `an image is what its run left, ${steps} times`,
  async () => {
    say(`COPPICE_TEST_SEED=${seed} COPPICE_TEST_STEPS=${steps}`);
    const known = [first];
    const startedAt = performance.now();
    for (let count = 0; count < steps; count++) {
      const newest = known.at(-1) as Known;
      const goesBack = newest.depth >= DEPTH_MAX || random.below(100) < 7;
      const shallow = known.filter(({ depth }) => depth < DEPTH_MAX / 2);
      const parent = goesBack ? (shallow[random.below(shallow.length)] as Known) : newest;
      if (parent !== newest) {
        // Nothing will start from it, so that it needs a machine of its own to be seen by one.
        const seen = await runProgram(appliance, newest.id, { directory, request: { disposable: true } });
        expectSame(
          "a fresh machine sees another image than the one that was captured",
          viewOfModel(newest.model),
          seen.before,
        );
      }
      known.push(await step(parent));
    }
    const last = known.at(-1) as Known;
    const seen = await runProgram(appliance, last.id, { directory, request: { disposable: true } });
    expectSame(
      "a fresh machine sees another image than the one that was captured",
      viewOfModel(last.model),
      seen.before,
    );
    say(`${Math.round((performance.now() - startedAt) / steps)} ms a step`);
  },
  60_000 + steps * STEP_MS_MAX,
);
