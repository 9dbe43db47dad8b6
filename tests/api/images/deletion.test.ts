import { afterAll, beforeAll, expect, test } from "bun:test";
import { eq } from "drizzle-orm";
import { getImage } from "../../../src/db/images/images.ts";
import { layers } from "../../../src/db/schema.ts";
import type { AccountId, ImageId, LayerId } from "../../../src/domain/ids.ts";
import { Api } from "../../support/api/api.ts";
import type { LayerFixture } from "../../support/api/layers.ts";
import { heldTest } from "../../support/api/program.ts";
import { listLayers } from "../../support/images/layer-files.ts";

const FILES: readonly LayerFixture[] = [{ path: "f", type: "f", content: "f".repeat(10_000) }];

let api: Api;
beforeAll(async () => {
  api = await Api.start();
});
afterAll(() => api[Symbol.asyncDispose]());

const preview = async (id: string, token = api.token) => {
  const { uuid, ...rest } = (await api.call("GET", `/v1/images/${id}/deletion`, { token })).json;
  expect(uuid).toBe(id);
  return rest;
};
const NOTHING = { size_bytes: 0, layers: 0, children: 0, tags: [], in_use: false };
const sizesOf = (ids: readonly string[]): number => ids.reduce((sum, id) => sum + (row(id)?.sizeBytes ?? 0), 0);
const row = (id: string) =>
  api.parts.db.orm
    .select()
    .from(layers)
    .where(eq(layers.id, id as LayerId))
    .get();
const layerOf = (id: string): LayerId => {
  const image = getImage(api.parts.db, "alice" as AccountId, id as ImageId);
  if (image === null) throw new Error("no such image");
  return image.layerId;
};

/** Deletes an image, and returns the number of layers that were removed. */
async function layersGone(id: string): Promise<number> {
  const before = (await listLayers(api.parts.layout)).size;
  expect((await api.call("DELETE", `/v1/images/${id}`)).status).toBe(204);
  return before - (await listLayers(api.parts.layout)).size;
}

test("the layers that no other image needs would be removed, down to the first that is needed", async () => {
  const base = await api.addImage([FILES], { tag: "base" });
  const step = await api.addRun(base, FILES);
  const leaf = await api.addRun(step, FILES);
  const sibling = await api.addRun(base, FILES);
  expect(await preview(base)).toEqual({ ...NOTHING, children: 2, tags: ["base"] });
  expect(await preview(step)).toEqual({ ...NOTHING, children: 1 });
  expect(await layersGone(step)).toBe(0);
  const figures = await preview(leaf);
  expect(figures).toEqual({ ...NOTHING, layers: 2, size_bytes: expect.any(Number) });
  expect(figures.size_bytes).toBeGreaterThan(sizesOf([layerOf(leaf)]));
  expect(await layersGone(leaf)).toBe(2);
  expect(await preview(base)).toEqual({ ...NOTHING, children: 1, tags: ["base"] });
  const last = await preview(sibling);
  expect([last.layers, last.size_bytes]).toEqual([1, sizesOf([layerOf(sibling)])]);
});

test("an image to which its run added nothing frees nothing while its parent exists", async () => {
  const base = await api.addImage([FILES]);
  const { db } = api.parts;
  const same = Bun.randomUUIDv7();
  db.orm.run(
    `insert into images (id, account_id, parent_id, layer_id, size_bytes, created_at) values ('${same}', 'alice', '${base}', '${layerOf(base)}', 0, 1)`,
  );
  expect(await preview(same)).toEqual(NOTHING);
  db.orm.run(`delete from images where id = '${same}'`);
  expect((await preview(base)).layers).toBe(1);
});

test("a base counts as removed even if another account has it", async () => {
  const image = await api.addImage([FILES]);
  const { db } = api.parts;
  const layer = layerOf(image);
  db.orm.update(layers).set({ baseKey: "key" }).where(eq(layers.id, layer)).run();
  const alone = await preview(image);
  expect(alone).toEqual({ ...NOTHING, layers: 1, size_bytes: sizesOf([layer]) });
  const foreign = Bun.randomUUIDv7() as ImageId;
  db.orm.run(
    `insert into images (id, account_id, layer_id, size_bytes, created_at) values ('${foreign}', 'bob', '${layer}', 1, 1)`,
  );
  expect(await preview(image)).toEqual(alone);
  expect((await preview(foreign, api.foreignToken)).layers).toBe(1);
  const leaf = await api.addRun(image, FILES);
  expect((await preview(image)).layers).toBe(0);
  expect((await preview(leaf)).layers).toBe(1);
  await api.call("DELETE", `/v1/images/${image}`);
  expect((await preview(leaf)).layers).toBe(2);
});

heldTest("one that an instance uses cannot be deleted now", async () => {
  const image = await api.addImage([FILES]);
  const { id } = api.operations.insert("alice" as AccountId, "instance", null, false, image);
  expect((await preview(image)).in_use).toBe(true);
  api.operations.cancel("alice" as AccountId, id);
  expect((await preview(image)).in_use).toBe(false);
});
