import { describe, expect, test } from "bun:test";
import type { Database } from "../../../src/db/database.ts";
import { existingLayers, layerChain } from "../../../src/db/images/layers.ts";
import {
  deleteMergedLayersUnusedSince,
  insertMergedLayer,
  layerBytesOf,
  mergedBytesOf,
  mergedLayersByUse,
  mergedLayersWithTop,
  touchMergedLayers,
} from "../../../src/db/images/merged-layers.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { deleteImage, deleteUnreferencedLayers } from "../../../src/db/removal.ts";
import { images as imageRows } from "../../../src/db/schema.ts";
import type { AccountId, ImageId, LayerId } from "../../../src/domain/ids.ts";
import { addExecuting, alice, bob, newId, someImage, someLayer, testDatabase } from "../../support/database.ts";

/** A chain of layers with an image on each; the base first. */
function chain(db: Database, length: number, accountId: AccountId = alice) {
  const layers: LayerId[] = [];
  const images: ImageId[] = [];
  for (let at = 0; at < length; at++) {
    const layer = someLayer({ parentId: layers.at(-1) ?? null });
    const image = someImage(layer.id, images.at(-1) ?? null);
    const published = publishOperation(db, {
      operationId: addExecuting(db, { accountId }),
      result: {},
      now: 1,
      layer,
      image,
    });
    if (!published) throw new Error("not published");
    layers.push(layer.id);
    images.push(image.id);
  }
  return { layers: layers as [LayerId, ...LayerId[]], images };
}

function merge(db: Database, belowId: LayerId | undefined, topId: LayerId | undefined, now = 1, accountId = alice) {
  const id = newId<LayerId>();
  if (belowId === undefined || topId === undefined) throw new Error("no such layer");
  return insertMergedLayer(db, { id, accountId, belowId, topId, sizeBytes: 5, entryCount: 1, now }) ? id : null;
}

describe("merged layers", () => {
  test("are mergedOf for every image of the account that contains their topmost layer", () => {
    using test = testDatabase();
    const { layers } = chain(test.db, 6);
    const merged = merge(test.db, layers[0], layers[3]);
    const mergedOf = (layer: LayerId | undefined, account = alice) =>
      mergedLayersWithTop(test.db, account, layers.slice(0, layers.indexOf(layer as LayerId) + 1)).map(({ id }) => id);
    expect(mergedOf(layers[3])).toEqual([merged as LayerId]);
    expect(mergedOf(layers[5])).toEqual([merged as LayerId]);
    expect(mergedOf(layers[2])).toEqual([]);
    expect(mergedOf(layers[5], bob)).toEqual([]);
    const layerIds = [...layers, merged as LayerId];
    expect(existingLayers(test.db, [...layerIds, newId<LayerId>()])).toEqual(new Set(layerIds));
  });

  test("exist once for a range of layers, and only with these layers", () => {
    using test = testDatabase();
    const { layers } = chain(test.db, 3);
    expect(merge(test.db, layers[0], layers[2])).not.toBeNull();
    expect(merge(test.db, layers[0], layers[2])).toBeNull();
    expect(merge(test.db, layers[0], newId<LayerId>())).toBeNull();
    expect(merge(test.db, newId<LayerId>(), layers[2])).toBeNull();
  });

  test("are deleted with any layer that they replace, and returned so that their files can be removed", () => {
    using test = testDatabase();
    const { layers, images } = chain(test.db, 5);
    const low = merge(test.db, layers[0], layers[2]) as LayerId;
    const high = merge(test.db, layers[2], layers[4]) as LayerId;
    const remove = (at: number) => {
      deleteImage(test.db, alice, images[at] as ImageId);
      return test.db.transaction((tx) => deleteUnreferencedLayers(tx, [layers[at] as LayerId], () => false).layers);
    };
    expect(remove(2)).toEqual([]);
    expect(new Set(remove(4))).toEqual(new Set([high, layers[4] as LayerId]));
    expect(mergedLayersByUse(test.db, alice).map(({ id }) => id)).toEqual([low]);
    expect(new Set(remove(3))).toEqual(new Set([low, layers[3], layers[2]] as LayerId[]));
    expect(layerChain(test.db, layers[1] as LayerId)).toHaveLength(2);
  });

  test("are listed by their last use, and expire", () => {
    using test = testDatabase();
    const { layers } = chain(test.db, 5);
    const [a, b, c] = [1, 2, 3].map((at) => merge(test.db, layers[0], layers[at + 1], at) as LayerId) as [
      LayerId,
      LayerId,
      LayerId,
    ];
    touchMergedLayers(test.db, [a, b], { now: 9, beforeMs: 2 });
    expect(mergedLayersByUse(test.db, alice).map(({ id }) => id)).toEqual([b, c, a]);
    expect(mergedLayersByUse(test.db, alice, 2).map(({ id }) => id)).toEqual([b, c]);
    const each = mergedLayersByUse(test.db, alice, 1)[0]?.sizeBytes ?? Number.NaN;
    expect(mergedBytesOf(test.db, alice)).toBe(3 * each);
    expect(mergedBytesOf(test.db, alice, { usedAfterMs: 2 })).toBe(2 * each);
    expect(mergedBytesOf(test.db, alice, { usedAfterMs: 2, except: [c, b] })).toBe(each);
    expect(mergedBytesOf(test.db, bob)).toBe(0);
    const expire = (beforeMs: number, held: LayerId) =>
      test.db.transaction((tx) =>
        deleteMergedLayersUnusedSince(tx, beforeMs, { limit: 10, isHeld: (id) => id === held }),
      );
    expect(expire(9, c)).toEqual([b]);
    expect(expire(9, b)).toEqual([c]);
    expect(mergedLayersByUse(test.db, alice).map(({ id }) => id)).toEqual([a]);
  });

  test("an account's layers are those of its images, each counted once", async () => {
    using test = testDatabase();
    const { layers } = chain(test.db, 4);
    const branch = someLayer({ parentId: layers[1] as LayerId, sizeBytes: 100 });
    publishOperation(test.db, {
      operationId: addExecuting(test.db),
      result: {},
      now: 1,
      layer: branch,
      image: someImage(branch.id),
    });
    chain(test.db, 2, bob);
    expect(await layerBytesOf(test.db, alice)).toBe(4 * 10 + 100);
    expect(await layerBytesOf(test.db, "carol" as AccountId)).toBe(0);
    // For many images another query computes the same sum.
    const layerId = layers[1] as LayerId;
    test.db.transaction((tx) => {
      for (let count = 0; count < 1000; count++) {
        const row = { id: newId<ImageId>(), accountId: alice, layerId, sizeBytes: 1, createdAt: 1 };
        tx.insert(imageRows).values(row).run();
      }
    });
    expect(await layerBytesOf(test.db, alice)).toBe(4 * 10 + 100);
  });
});
