import { describe, expect, test } from "bun:test";
import type { Database } from "../../../src/db/database.ts";
import { unreferencedLayers } from "../../../src/db/expiry.ts";
import { getImage, type ImageFilter, listImagesSync, resolveImage } from "../../../src/db/images/images.ts";
import { existingLayers, findBaseLayer, findProvenBase, layerChain } from "../../../src/db/images/layers.ts";
import { deleteOperationsFinishedBefore, getOperation, requestCancel } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { deleteImage, deleteUnreferencedLayers } from "../../../src/db/removal.ts";
import type { AccountId, ImageId, LayerId } from "../../../src/domain/ids.ts";
import {
  addExecuting,
  addOperation,
  alice,
  bob,
  databasePerTest,
  importImage,
  layerRow,
  newId,
  someImage,
  someLayer,
} from "../../support/database.ts";

let db: Database;
databasePerTest((opened) => {
  db = opened.db;
});

const addImage = (options?: Parameters<typeof importImage>[1]) => importImage(db, options);

const list = (filter: Partial<ImageFilter> = {}) =>
  listImagesSync(db, alice, { limit: 100, offset: 0, ...filter }).map((image) => image.id);

describe("publishing", () => {
  test("an import publishes layer, image, tag and result at once", () => {
    const operationId = addExecuting(db, { kind: "image_import" });
    const layer = someLayer({ format: "erofs", baseKey: "sha256:1/linux/amd64/1" });
    const image = { ...someImage(layer.id), digest: "sha256:1" };
    const result = { image: image.id, size_bytes: 10 };
    expect(publishOperation(db, { operationId, result, now: 42, layer, image, tag: "base" })).not.toBeNull();
    expect(getOperation(db, alice, operationId)).toMatchObject({
      status: "SUCCESS",
      result,
      finishedAt: 42,
      error: null,
    });
    expect(getImage(db, alice, image.id)).toEqual({
      id: image.id,
      accountId: alice,
      parentId: null,
      operationId,
      layerId: layer.id,
      digest: "sha256:1",
      sizeBytes: 10,
      tagged: true,
      createdAt: 42,
      tag: "base",
    });
    expect(findBaseLayer(db, "sha256:1/linux/amd64/1")).toEqual({
      ...layer,
      baseKey: "sha256:1/linux/amd64/1",
      createdAt: 42,
    });
    expect(findBaseLayer(db, "other")).toBeNull();
  });

  test("a base counts as verified for each account that imported it, until it is removed", () => {
    const publishing = (accountId: AccountId, layer = someLayer({ baseKey: "key" }), isNew = true) => {
      const operationId = addExecuting(db, { accountId, kind: "image_import" });
      const image = someImage(layer.id);
      const publication = { result: {}, image, layer: isNew ? layer : undefined, provesBase: true };
      expect(publishOperation(db, { operationId, now: 1, ...publication })).not.toBeNull();
      return image.id;
    };
    const base = someLayer({ baseKey: "key" });
    const first = publishing(alice, base);
    expect(findProvenBase(db, alice, "key")?.id).toBe(base.id);
    expect(findProvenBase(db, alice, "other")).toBeNull();
    expect(findProvenBase(db, bob, "key")).toBeNull();
    // A run on it verifies it for no other account; a second import gets the first one's layer.
    const second = publishing(bob);
    expect(findProvenBase(db, bob, "key")?.id).toBe(base.id);
    const third = publishing(bob, base, false);
    deleteImage(db, alice, first);
    expect(findProvenBase(db, alice, "key")?.id).toBe(base.id);
    for (const id of [second, third]) deleteImage(db, bob, id);
    expect(deleteUnreferencedLayers(db.orm, [base.id], () => false).layers).toEqual([base.id]);
    publishing(bob);
    expect(findProvenBase(db, alice, "key")).toBeNull();
    expect(findProvenBase(db, bob, "key")).not.toBeNull();
  });

  test("a run can publish an image, or nothing but its result", () => {
    const parent = addImage();
    const base = getImage(db, alice, parent)?.layerId as LayerId;
    const operationId = addExecuting(db, { imageId: parent });
    const layer = someLayer({ parentId: base });
    const image = someImage(layer.id, parent);
    expect(publishOperation(db, { operationId, result: { exit_code: 0 }, now: 5, layer, image })).not.toBeNull();
    expect(getImage(db, alice, image.id)).toMatchObject({
      parentId: parent,
      layerId: layer.id,
      tag: null,
      tagged: false,
    });
    const disposable = addExecuting(db, { imageId: parent });
    expect(publishOperation(db, { operationId: disposable, result: { exit_code: 3 }, now: 6 })).not.toBeNull();
    expect(list()).toHaveLength(2);
  });

  test("changes nothing when a cancel was accepted or the operation is not EXECUTING", async () => {
    const cancelled = addExecuting(db);
    requestCancel(db, alice, cancelled, 3);
    for (const operationId of [cancelled, addOperation(db), newId()]) {
      const layer = someLayer({ baseKey: "key" });
      const image = someImage(layer.id);
      expect(publishOperation(db, { operationId, result: {}, now: 5, layer, image, tag: "t" })).toBeNull();
      expect(publishOperation(db, { operationId, result: {}, now: 5, layer, image })).toBeNull();
    }
    expect(list()).toEqual([]);
    expect(await unreferencedLayers(db, 10)).toEqual([]);
    expect(resolveImage(db, alice, { tag: "t" })).toBeNull();
    expect(getOperation(db, alice, cancelled)).toMatchObject({ status: "EXECUTING", result: null });
  });

  test("is undone as a whole when its last step fails", () => {
    const operationId = addExecuting(db);
    const layer = someLayer();
    const image = someImage(newId<LayerId>());
    expect(() => publishOperation(db, { operationId, result: {}, now: 5, layer, image })).toThrow("FOREIGN KEY");
    expect(getOperation(db, alice, operationId)).toMatchObject({ status: "EXECUTING", result: null });
    expect(layerRow(db, layer.id)).toBeNull();
  });

  test("the same base twice keeps one layer", () => {
    const layers = [someLayer({ baseKey: "same" }), someLayer({ baseKey: "same" })] as const;
    const images = layers.map((layer, index) => {
      const image = someImage(layer.id);
      const published = publishOperation(db, { operationId: addExecuting(db), result: {}, now: 1, layer, image });
      expect(published).toEqual({ hasOwnLayer: index === 0 });
      return getImage(db, alice, image.id)?.layerId;
    });
    expect(images).toEqual([layers[0].id, layers[0].id]);
    expect(layerRow(db, layers[1].id)).toBeNull();
    const again = someImage(layers[0].id);
    expect(publishOperation(db, { operationId: addExecuting(db), result: {}, now: 1, image: again })).toEqual({
      hasOwnLayer: false,
    });
  });
});

describe("listings", () => {
  test("are newest first, then by id, with inclusive bounds of time and pages", () => {
    const ids = Array.from({ length: 12 }, (_, n) => addImage({ now: Math.floor(n / 3) }));
    addImage({ accountId: bob });
    const expected = ids.toReversed();
    expect(list()).toEqual(expected);
    expect(list({ limit: 5, offset: 4 })).toEqual(expected.slice(4, 9));
    expect(list({ offset: 12 })).toEqual([]);
    expect(list({ sinceMs: 1, untilMs: 2 })).toEqual(expected.slice(3, 9));
  });

  test("of tagged and untagged images", () => {
    const one = addImage({ tag: "a", now: 1 });
    const two = addImage({ now: 2 });
    const three = addImage({ tag: "b", now: 3 });
    expect(list({ tagged: true })).toEqual([three, one]);
    expect(list({ tagged: false })).toEqual([two]);
    expect(list({ tagged: true, limit: 1, offset: 1 })).toEqual([one]);
  });

  test("by a prefix of the tag, which is not a pattern", () => {
    const names = ["a", "aB", "a_b", "ab", "abc", "a/b:1.0-x", "b", "A"];
    const byName = new Map(names.map((name, n) => [name, addImage({ tag: name, now: n })]));
    const untagged = addImage({ now: 100 });
    for (const prefix of ["", "a", "ab", "abc", "abcd", "a_", "a/", "a/b:", "a.", "A", "z", "%", "_"]) {
      const expected = names
        .filter((name) => name.startsWith(prefix))
        .toReversed()
        .map((name) => byName.get(name));
      expect(list({ tagPrefix: prefix })).toEqual(expected as ImageId[]);
      expect(list({ tagPrefix: prefix, tagged: true })).toEqual(expected as ImageId[]);
      expect(list({ tagPrefix: prefix, tagged: false })).toEqual([]);
      expect(list({ tagPrefix: prefix, limit: 1, offset: 1 })).toEqual(expected.slice(1, 2) as ImageId[]);
    }
    expect(list({ tagPrefix: "a", sinceMs: 2, untilMs: 3 })).toHaveLength(2);
    expect(list()).toContain(untagged);
  });
});

describe("layers", () => {
  test("chain from the base up", () => {
    const ids: LayerId[] = [];
    for (let depth = 0; depth < 200; depth++) {
      const layer = someLayer({ parentId: ids.at(-1) ?? null });
      publishOperation(db, {
        operationId: addExecuting(db),
        result: {},
        now: depth,
        layer,
        image: someImage(layer.id),
      });
      ids.push(layer.id);
    }
    expect(layerChain(db, ids.at(-1) as LayerId).map((layer) => layer.id)).toEqual(ids);
    expect(layerChain(db, ids[3] as LayerId).map((layer) => layer.createdAt)).toEqual([0, 1, 2, 3]);
    expect(layerChain(db, newId<LayerId>())).toEqual([]);
    expect(existingLayers(db, [...ids, newId<LayerId>()])).toEqual(new Set(ids));
  });

  test("chain again from a branch, and not at all once they are removed", () => {
    const add = (parentId: LayerId | null) => {
      const layer = someLayer({ parentId });
      const image = someImage(layer.id);
      publishOperation(db, { operationId: addExecuting(db), result: {}, now: 1, layer, image });
      return { layer: layer.id, image: image.id };
    };
    const base = add(null);
    const [left, right] = [add(base.layer), add(base.layer)];
    const chain = (id: LayerId) => layerChain(db, id).map((layer) => layer.id);
    expect(chain(left.layer)).toEqual([base.layer, left.layer]);
    const further = add(left.layer);
    expect(chain(further.layer)).toEqual([base.layer, left.layer, further.layer]);
    expect(chain(right.layer)).toEqual([base.layer, right.layer]);
    expect(chain(right.layer)).toEqual([base.layer, right.layer]);
    deleteImage(db, alice, further.image);
    expect(db.transaction((tx) => deleteUnreferencedLayers(tx, [further.layer], () => false).layers)).toEqual([
      further.layer,
    ]);
    expect(chain(further.layer)).toEqual([]);
    expect(chain(left.layer)).toEqual([base.layer, left.layer]);
  });
});

test("an image outlives the operation that made it", () => {
  const id = addImage({ now: 5 });
  expect(deleteOperationsFinishedBefore(db, 100, 10)).toHaveLength(1);
  expect(getImage(db, alice, id)).toMatchObject({ operationId: null });
});
