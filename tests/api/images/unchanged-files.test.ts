import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { getImage, imageDefaults } from "../../../src/db/images/images.ts";
import { startOperation } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import type { ImageId } from "../../../src/domain/ids.ts";
import { layerPath } from "../../../src/storage/layers/layers.ts";
import { Api } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { alice } from "../../support/database.ts";
import { until } from "../../support/waiting.ts";

/* Images that have the layer of their parent, because they differ only in the defaults of commands. */

const BASE: readonly LayerFixture[] = [{ path: "base", type: "f", content: "base" }];
const STEP: readonly LayerFixture[] = [{ path: "step", type: "f", content: "step" }];

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const read = async (path: string) => (await api.call("GET", `/v1/images/${path}`)).json;
const remove = async (id: string) => (await api.call("DELETE", `/v1/images/${id}`)).status;
const changes = async (path: string) => (await read(path)).items.map(({ path: at }: { path: string }) => at);
const layerOf = (id: ImageId) => getImage(api.parts.db, alice, id)?.layerId as never;

/** Publishes the image of a run that changed no file. */
function addUnchanged(parent: ImageId, variables: Record<string, string>): ImageId {
  const { db } = api.parts;
  const operation = api.operations.insert(alice, "instance", null, false, parent);
  startOperation(db, operation.id, Date.now());
  const image = {
    ...{ id: Bun.randomUUIDv7() as ImageId, parentId: parent, layerId: layerOf(parent), sizeBytes: 0 },
    ...{ defaults: { variables, cwd: "/srv" }, origin: { command: ["true"] } },
  };
  expect(publishOperation(db, { operationId: operation.id, result: {}, now: Date.now(), image })).not.toBeNull();
  return image.id;
}

async function family(): Promise<{ base: ImageId; run: ImageId; kept: ImageId; again: ImageId; last: ImageId }> {
  const base = await api.addImage([BASE]);
  const run = await api.addRun(base, STEP);
  const kept = addUnchanged(run, { A: "1" });
  const again = addUnchanged(kept, { A: "2" });
  const last = await api.addRun(again, [{ path: "last", type: "f", content: "last" }]);
  return { base, run, kept, again, last };
}

test("an image differs from its parent in nothing, also when the parent is gone", async () => {
  const { base, run, kept, again, last } = await family();
  expect(imageDefaults(api.parts.db, again)).toEqual({ variables: { A: "2" }, cwd: "/srv" });
  expect(await changes(`${run}/diff`)).toEqual(["/step"]);
  for (const id of [kept, again]) expect(await read(`${id}/diff`)).toMatchObject({ items: [] });
  expect((await read(`${kept}/diff`)).against).toBe(run);
  expect(await changes(`${last}/diff`)).toEqual(["/last"]);
  expect(await changes(`${again}/diff?against=${base}`)).toEqual(["/step"]);
  expect(await remove(run)).toBe(204);
  expect(await read(`${kept}/diff`)).toMatchObject({ items: [], against: run });
});

test("its lineage has every step, and its size is what it added", async () => {
  const { base, run, kept, again, last } = await family();
  const steps = await read(`${last}/lineage`);
  expect(steps.map(({ uuid }: { uuid: string }) => uuid)).toEqual([last, again, kept, run, base]);
  expect((await read(`${run}/children?recursive=true`)).map(({ uuid }: { uuid: string }) => uuid)).toEqual([
    kept,
    again,
    last,
  ]);
  expect(await read(kept)).toMatchObject({ uuid: kept, parent: run, size_bytes: 0 });
});

test("a layer stays until the last of its images is deleted", async () => {
  const { run, kept, again, last } = await family();
  const { layout } = api.parts;
  const [shared, top] = [layerOf(run), layerOf(last)];
  for (const id of [run, again]) expect(await remove(id)).toBe(204);
  expect((await api.call("GET", `/v1/inspect/${kept}/download?path=/step`)).status).toBe(200);
  expect(await remove(kept)).toBe(204);
  expect(existsSync(layerPath(layout, shared))).toBe(true);
  expect((await api.call("GET", `/v1/inspect/${last}/download?path=/step`)).status).toBe(200);
  expect(await remove(last)).toBe(204);
  // The download ends before its reader releases the layers.
  await until("both layers are removed", () => [shared, top].every((id) => !existsSync(layerPath(layout, id))));
});

test("an archive of it has its variables and its directory", async () => {
  const { kept, run } = await family();
  const archive = async (id: string) => {
    const answer = await fetch(`${api.parts.url}/v1/images/${id}/save`, {
      headers: { authorization: `Bearer ${api.parts.token}` },
    });
    expect(answer.status).toBe(200);
    return await answer.text();
  };
  expect(await archive(kept)).toContain('"config":{"Env":["A=1"],"WorkingDir":"/srv","Labels":{"coppice.cwd":"/srv"}}');
  expect(await archive(run)).toContain('"config":{}');
});
