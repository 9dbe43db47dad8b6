/**
 * Chains that are merged: a merge must not change what machines and inspection see of an image, even if a process ends
 * during the merge. COPPICE_TEST_SEED sets the operations of the last test.
 */
import { Database } from "bun:sqlite";
import { afterAll, beforeAll, expect, test } from "bun:test";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { dataLayout } from "../../../src/storage/layout.ts";
import type { Appliance, Finished } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { Generator } from "../../support/capture/generator.ts";
import { Inspector } from "../../support/capture/inspect.ts";
import type { Operation } from "../../support/capture/model.ts";
import { CaptureSteps, type KnownImage } from "../../support/capture/step.ts";
import { parseExposition } from "../../support/exposition.ts";
import { deepen } from "../../support/images/deep-chain.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { execute, resultOf } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

const DIRECTORY = "/t";
const STEPS_COUNT = Number(process.env["COPPICE_TEST_STEPS"] ?? 40);
const OPERATIONS_COUNT = 40;
const MERGE_MS_MAX = 60_000;
const NONE = ["--layers-merged-share", "0"];
const ANY = ["--layers-merged-share", "10"];

const seed = seedOfTests();
const owned = new AsyncDisposableStack();
let appliance: Appliance;
let reference: string;
let inspector: Inspector;
let base: string;

beforeAll(async () => {
  ({ appliance, reference, image: base } = owned.use(await BusyboxAppliance.start({ flags: NONE })));
  inspector = owned.use(new Inspector(appliance));
}, 120_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

/** The merged layers, the least recently used first. */
function mergedRows(): { readonly id: string }[] {
  // A connection like the daemon's makes a checkpoint when it is closed, which would block the daemon's writes.
  using db = new Database(dataLayout(appliance.dataDir).database, { readonly: true });
  const query = "SELECT id FROM merged_layers WHERE account_id = 'tester' ORDER BY last_used_at, created_at";
  return db.query<{ readonly id: string }, []>(query).all();
}

/** Directories of machines that merge. */
async function leftovers(): Promise<string[]> {
  return (await appliance.leftovers()).filter((name) => name.startsWith("tmp/merge-"));
}

async function restart(flags: readonly string[], signal: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<void> {
  await appliance.down(signal);
  appliance.flags = flags;
  await appliance.up();
}

/** Waits until the daemon, which must be idle, has nothing left to merge. */
async function settled(): Promise<void> {
  await until("layers are merged", () => mergedRows().length > 0, MERGE_MS_MAX);
  await until("no merge waits or runs", async () => {
    const { value } = parseExposition(await (await fetch(`${appliance.url}/metrics`)).text());
    const isBusy = value("coppice_budget_memory_bytes", { state: "used" }) !== 0;
    return !isBusy && value("coppice_layer_merges_waiting") === 0;
  });
}

/** Six runs, each of which undoes part of an earlier one. */
const RUNS = [
  "mkdir -p d/e keep; echo 1 > d/e/one; echo 1 > keep/file; ln keep/file keep/link; ln -s d sym; echo x > was-file",
  "rm -r d; mkdir d; echo 2 > d/two; rm was-file; mkdir was-file; echo 2 > was-file/in",
  "rm sym; mkdir sym; echo 3 > sym/three; chmod 3771 keep; dd if=/dev/zero of=sparse bs=1 count=1 seek=50000000 2>/dev/null",
  "rm -r was-file; echo 4 > was-file; mkfifo pipe; chown 7:8 d; echo 4 >> keep/file; rm -r sym; ln -s keep sym",
  "rm -r d keep/link pipe; mkdir -p d/e; echo 5 > d/e/five; touch -d @1000000000 d/e",
  "rm d/e/five; mkdir d/e/five; echo 6 > d/e/five/six; rm -r keep; rm -f sparse sym",
] as const;

async function runAll(image: string, commands: readonly string[]): Promise<string> {
  let tip = image;
  for (const command of commands) {
    const run = resultOf(await appliance.run(tip, `mkdir -p /t && cd /t && ${command}`));
    if (run.exit_code !== 0) throw new Error(`${command}: ${run.err}`);
    tip = String(run.image);
  }
  return tip;
}

const WALK = `cd /t && find . | sort | while read -r f; do
  [ -d "$f" ] && stat -c '%n %F %a %u %g %y' "$f" || stat -c '%n %F %a %u %g %s %h %y %N' "$f"
  [ -f "$f" ] && sha256sum < "$f"
done; exit 0`;

/** The tree that a new machine sees, and its number of layer disks. */
async function look(image: string): Promise<{ tree: string; disks: number }> {
  const command = `${WALK.replace("exit 0", "ls -d /sys/block/sd* | wc -l")}`;
  const { out, err } = await execute(appliance, { image, command, shell: true });
  expect(err).toBe("");
  const lines = out.trimEnd().split("\n");
  return { tree: lines.slice(0, -1).join("\n"), disks: Number(lines.at(-1)) - 1 };
}

async function listings(image: string): Promise<string[]> {
  const pages: string[] = [];
  for (const path of ["/t", "/t/d", "/t/d/e"]) {
    const response = await appliance.fetch(`/inspect/${image}/list?path=${path}`, {
      headers: { accept: "text/plain" },
    });
    pages.push(await response.text());
  }
  return pages;
}

test("a chain of 156 runs starts merged at once, and has the same files", async () => {
  const six = await runAll(base, RUNS);
  const original = await look(six);
  const pages = await listings(six);
  expect(original.disks).toBe(7);
  expect(original.tree).toContain("./d/e/five/six regular file 644 0 0 2 1");
  await appliance.down();
  const deep = deepen(appliance.dataDir, six, { period: 6, count: 150 }).at(-1) as string;
  await restart(NONE);
  // It has too many disks for a machine, so the run itself has to merge.
  const first = await look(deep);
  expect(first.tree).toBe(original.tree);
  expect(first.disks).toBeLessThanOrEqual(128);
  expect(first.disks).toBeGreaterThan(60);
  expect(await listings(deep)).toEqual(pages);

  await restart(ANY);
  await look(deep);
  await settled();
  const second = await look(deep);
  expect(second.tree).toBe(original.tree);
  expect(second.disks).toBeLessThanOrEqual(6);
  expect(await listings(deep)).toEqual(pages);
  expect(resultOf(await appliance.run(deep, "rm -r /t/d && ls -A /t")).out).toBe("was-file\n");
}, 300_000);

test("a chain is merged on a host that is never idle, and the merge delays no run", async () => {
  await restart(NONE);
  const six = await runAll(base, RUNS);
  const { tree } = await look(six);
  await appliance.down();
  const deep = deepen(appliance.dataDir, six, { period: 6, count: 24 }).at(-1) as string;
  // One place, which another account uses all the time.
  await restart([...ANY, "--vm-cpu-budget", "1"]);
  const token = await appliance.createToken("other");
  const call = async (path: string, body?: Record<string, unknown>) => {
    const headers = { "content-type": "application/json" };
    const init = body === undefined ? {} : { method: "POST", headers, body: JSON.stringify(body) };
    return (await (await appliance.fetch(path, { ...init, token })).json()) as Finished & { uuid: string };
  };
  const { uuid } = await call("/images/import", { registry: reference });
  const { image } = (await call(`/operations/${uuid}?wait=60`)).result as unknown as { image: string };
  const ids: string[] = [];
  const wait = async () => ids.push((await call("/instances", { image, command: "sleep 0.2", shell: true })).uuid);
  for (let count = 0; count < 4; count++) await wait();
  const previousCount = mergedRows().length;
  expect(await look(deep)).toEqual({ tree, disks: 31 });
  await until(
    "the chain is merged",
    async () => {
      const { status } = await call(`/operations/${ids.at(-3)}`);
      if (status === "SUCCESS") await wait();
      return mergedRows().length > previousCount;
    },
    MERGE_MS_MAX,
  );
  expect((await look(deep)).tree).toBe(tree);
  expect((await look(deep)).disks).toBeLessThan(12);
  for (const id of ids) expect((await call(`/operations/${id}?wait=60`)).status).toBe("SUCCESS");
  expect(appliance.log).toContain('"urgency":"urgent"');
}, 300_000);

test("a kill of the service leaves no incomplete layer, and the merge is repeated", async () => {
  await restart(ANY);
  const eight = await runAll(base, [
    ...RUNS,
    "dd if=/dev/urandom of=large bs=1M count=48 2>/dev/null",
    "echo 8 > eight",
  ]);
  const { tree } = await look(eight);
  const previousCount = mergedRows().length;
  await until("a merge is under way", async () => (await leftovers()).length > 0, MERGE_MS_MAX);
  await restart(ANY, "SIGKILL");
  expect(await leftovers()).toEqual([]);
  const filesCount = async () => (await readdir(join(appliance.dataDir, "layers"))).length;
  await until("half a layer is swept", async () => (await filesCount()) % 2 === 0);
  expect((await look(eight)).tree).toBe(tree);
  await until("the layers are merged after all", () => mergedRows().length > previousCount, MERGE_MS_MAX);
  expect((await look(eight)).tree).toBe(tree);
}, 300_000);

test("merged layers beyond their share are removed with their files", async () => {
  await restart(ANY);
  await look(await runAll(base, ["echo 1 > a", "echo 2 > b", "echo 3 > c"]));
  await settled();
  const given = mergedRows().map(({ id }) => `${id}.disk`);
  const files = await readdir(join(appliance.dataDir, "layers"));
  expect(files).toEqual(expect.arrayContaining(given));
  await restart(["--layers-merged-share", "0.0001"]);
  await until("what is beyond the share is gone", () => mergedRows().length === 0, MERGE_MS_MAX);
  const left = () => readdir(join(appliance.dataDir, "layers"));
  // Rows go before their files.
  await until("its files are gone", async () => (await left()).length === files.length - 2 * given.length);
  expect((await left()).filter((name) => given.includes(name))).toEqual([]);
}, 300_000);

test(`a chain of ${STEPS_COUNT} runs is the same after the merge (seed ${seed})`, async () => {
  const random = seededRandom(seed);
  const generator = new Generator(random);
  const capture = new CaptureSteps({ appliance, inspector }, DIRECTORY);
  let image: KnownImage = await capture.first(base);
  const images = [image];
  for (let step = 0; step < STEPS_COUNT; step++) {
    const model = image.model.captured();
    const operations: Operation[] = [];
    while (operations.length < OPERATIONS_COUNT) {
      for (const operation of generator.next(model)) {
        operations.push(operation);
        model.apply(operation);
      }
    }
    image = await capture.step(image, operations);
    images.push(image);
  }
  expect(mergedRows()).toEqual([]);
  const before = await inspector.view(image.id, DIRECTORY);
  await restart(ANY);
  await capture.walk(image);
  await settled();
  const attached = mergedRows();
  expect(attached.length).toBeGreaterThan(0);
  await capture.walk(image);
  expect(await inspector.view(image.id, DIRECTORY)).toEqual(before);
  // The images in the middle of the merged range are unchanged, too.
  for (const depth of [1, 7, 23, 39].filter((at) => at < images.length))
    await capture.walk(images[depth] as KnownImage);
  await settled();
  for (const depth of [7, 23, 39].filter((at) => at < images.length)) await capture.walk(images[depth] as KnownImage);
}, 600_000);
