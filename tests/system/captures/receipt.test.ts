/** A receipt of images that machines made. */
import { afterAll, beforeAll, expect, test } from "bun:test";
import type { Statement } from "../../../src/domain/receipts/statement.ts";
import { parseKey, verifyReceipt } from "../../../src/storage/receipts/verification.ts";
import type { Appliance, Finished } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let base = "";

beforeAll(async () => {
  ({ appliance, image: base } = owned.use(await BusyboxAppliance.start()));
}, 180_000);

afterAll(async () => {
  await owned.disposeAsync();
}, 60_000);

const imageOf = (operation: Finished) => (operation.result as { image: string }).image;
const json = async (path: string) => (await appliance.fetch(path)).json() as Promise<Record<string, string>>;

async function receipt(image: string): Promise<Statement> {
  const text = await (await appliance.fetch(`/images/${image}/receipt`)).text();
  return verifyReceipt(text, parseKey((await json("/receipts/key"))["public_key"] ?? ""));
}

test("a receipt names the imported manifest, each command with its end and isolation, and survives a restart", async () => {
  const first = imageOf(await appliance.run(base, "echo 1 > /root/one", { env: { KEY: "hunter2" } }));
  const second = imageOf(await appliance.run(first, "echo 2 > /root/two; exit 4"));
  const statement = await receipt(second);
  const { buildDefinition, runDetails } = statement.predicate;
  expect(buildDefinition.externalParameters.steps.map(({ kind, command }) => [kind, command?.at(-1)])).toEqual([
    ["image_import", undefined],
    ["instance", "echo 1 > /root/one"],
    ["instance", "echo 2 > /root/two; exit 4"],
  ]);
  const { digest = "" } = await json(`/images/${base}`);
  expect(buildDefinition.resolvedDependencies).toMatchObject([{ digest: { sha256: digest.replace("sha256:", "") } }]);
  const outcomes = runDetails.byproducts.flatMap(({ annotations }) =>
    annotations?.["step"] === undefined ? [] : [annotations],
  );
  expect(outcomes).toMatchObject([
    { step: 0, isRecorded: true, network: "none" },
    { step: 1, exitCode: 0, isolation: expect.stringMatching(/^vm/), network: "none" },
    { step: 2, exitCode: 4, isolation: expect.stringMatching(/^vm/), network: "none" },
  ]);
  expect(JSON.stringify(statement)).not.toContain("hunter2");
  // The digest is that of the archive which the appliance gives to anyone.
  const archive = await (await appliance.fetch(`/images/${second}/save`)).bytes();
  const tar = Bun.spawn(["tar", "-xO", "index.json"], { stdin: archive, stdout: "pipe" });
  const index = (await new Response(tar.stdout).json()) as { manifests: readonly { digest: string }[] };
  expect(`sha256:${statement.subject[0]?.digest?.["sha256"]}`).toBe(index.manifests[0]?.digest ?? "");
  const key = await json("/receipts/key");
  await appliance.down();
  await appliance.up();
  expect(await json("/receipts/key")).toEqual(key);
  expect((await receipt(second)).subject).toEqual(statement.subject);
}, 300_000);
