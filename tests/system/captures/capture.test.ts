/**
 * Random operations in machines, and three views of every image that they make: a walk in a fresh machine, the
 * inspection without one, and a model. COPPICE_TEST_STEPS sets the number of steps, COPPICE_TEST_SEED the choices:
 * `make soak` uses a new seed each time.
 * A step is one machine: it walks the image of an earlier machine, applies about a hundred operations, and walks the
 * result as its program sees it.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { Generator } from "../../support/capture/generator.ts";
import { Inspector, listedLine } from "../../support/capture/inspect.ts";
import type { Model, Node, Operation } from "../../support/capture/model.ts";
import { CaptureSteps, type KnownImage } from "../../support/capture/step.ts";
import type { View } from "../../support/capture/view.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";

const STEPS_DEFAULT = 100;
const OPERATIONS_COUNT = 100;
/** Deeper images are walked, but not used as parents: attaching many layers is tested elsewhere. */
const DEPTH_MAX = 22;
/** Share of the steps that start from an older image than the newest. */
const GOES_BACK_PERCENT = 7;
const DOWNLOADS_COUNT = 6;
const LISTS_COUNT = 12;
const DOWNLOAD_BYTES_MAX = 1_048_576;
const STEP_MS_MAX = 20_000;
const DIRECTORY = "/t";

const steps = Number(process.env["COPPICE_TEST_STEPS"] ?? STEPS_DEFAULT);
const seed = seedOfTests();
const random = seededRandom(seed);
const generator = new Generator(random);
const say = (text: string): void => void process.stderr.write(`capture: ${text}\n`);

const owned = new AsyncDisposableStack();
let inspector: Inspector;
let capture: CaptureSteps;
let first: KnownImage;

beforeAll(async () => {
  const setup = owned.use(await BusyboxAppliance.start());
  const { appliance } = setup;
  inspector = owned.use(new Inspector(appliance));
  capture = new CaptureSteps({ appliance, inspector }, DIRECTORY);
  first = await capture.first(setup.image);
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

/** Operations for an image; each is chosen by what those before it have done. */
function generate(parent: Model): Operation[] {
  const model = parent.captured();
  const operations: Operation[] = [];
  while (operations.length < OPERATIONS_COUNT) {
    for (const operation of generator.next(model)) {
      operations.push(operation);
      model.apply(operation);
    }
  }
  return operations;
}

/** Compares a sample of the image over HTTP. */
async function checkHttp({ id, model }: KnownImage, view: View): Promise<void> {
  const entries = [...model.entries()];
  const directories = entries.filter(([, node]) => node.type === "d");
  for (let count = 0; count < LISTS_COUNT; count++) await checkList(id, view, some(directories));
  const files = entries.filter(([, node]) => node.type === "f");
  for (let count = 0; count < DOWNLOADS_COUNT && files.length > 0; count++) await checkDownload(id, some(files));
}

async function checkList(image: string, view: View, [path, { children }]: readonly [string, Node]): Promise<void> {
  const expected: Record<string, string> = {};
  for (const name of children.keys()) expected[name] = listedLine(view.get(`${path}/${name}`) ?? expect.unreachable());
  expect(Object.fromEntries(await inspector.list(image, path))).toEqual(expected);
}

async function checkDownload(image: string, [path, { content }]: readonly [string, Node]): Promise<void> {
  const { size } = content;
  expect(await inspector.exists(image, path)).toBe(true);
  expect(await inspector.exists(image, `${path.slice(0, path.lastIndexOf("/"))}/absent`)).toBe(false);
  if (size === 0) return;
  const isLarge = size > DOWNLOAD_BYTES_MAX;
  const start = isLarge ? size - DOWNLOAD_BYTES_MAX : 0;
  const bytes = await inspector.download(image, path, isLarge ? { start, end: size } : undefined);
  expect(bytes.equals(content.slice(start, size))).toBe(true);
}

function some<T>(values: readonly T[]): T {
  return values[random.below(values.length)] as T;
}

async function run(): Promise<void> {
  const shallow = [first];
  let newest = first;
  for (let count = 0; count < steps; count++) {
    const goesBack = newest.depth >= DEPTH_MAX || random.below(100) < GOES_BACK_PERCENT;
    // Nothing will start from it, so a machine of its own has to walk it.
    if (goesBack) await capture.walk(newest);
    const parent = goesBack ? some(shallow) : newest;
    const image = await capture.step(parent, generate(parent.model));
    await checkHttp(image, image.view);
    newest = image;
    if (newest.depth < DEPTH_MAX / 2) shallow.push(newest);
  }
  await capture.walk(newest);
}

// spec: service.branch, service.inspect
test(
  `an image is what its run left, ${steps} times`,
  async () => {
    say(`COPPICE_TEST_SEED=${seed} COPPICE_TEST_STEPS=${steps}`);
    const startedAt = performance.now();
    await run();
    say(`${Math.round((performance.now() - startedAt) / steps)} ms a step`);
  },
  60_000 + steps * STEP_MS_MAX,
);
