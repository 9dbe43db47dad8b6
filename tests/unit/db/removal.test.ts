import { beforeEach, describe, expect, test } from "bun:test";
import { eq, sql } from "drizzle-orm";
import { branchImagesFrom, walkUp } from "../../../src/db/branches/branch-images.ts";
import { branchOperationsOf } from "../../../src/db/branches/branch-operations.ts";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import { previewExpiry } from "../../../src/db/expiry.ts";
import { descendants, getHistory, insertHistory, lineage } from "../../../src/db/images/history.ts";
import { getImage, imagesBeingRemoved, listImages, resolveImage } from "../../../src/db/images/images.ts";
import { setTag } from "../../../src/db/images/tags.ts";
import { listOperations } from "../../../src/db/operation-listing.ts";
import { getOperation, insertOperation } from "../../../src/db/operations.ts";
import {
  deleteExpiredImages,
  deleteImage,
  deleteUnreferencedLayers,
  REMOVED_LAYERS_MAX,
  REMOVED_ROWS_MAX,
} from "../../../src/db/removal.ts";
import { history, images, layers, operations } from "../../../src/db/schema.ts";
import { accountSpaces, largestImages } from "../../../src/db/totals.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { ImageId, LayerId, OperationId } from "../../../src/domain/ids.ts";
import { finishRemovals } from "../../../src/supervisor/reclaim.ts";
import {
  alice,
  databasePerTest,
  importImage,
  newId,
  someImage,
  someLayer,
  type TestDatabase,
} from "../../support/database.ts";
import { throwing } from "../../support/failures.ts";

/** More rows than several transactions may change. */
const MANY_COUNT = 5 * REMOVED_ROWS_MAX;
const BY = { accountId: alice };
const ALL = { limit: 10_000, offset: 0 };

let store: TestDatabase;
let db: Database;
databasePerTest((each) => {
  store = each;
  db = each.db;
});

/** Ended operations that ran on an image. */
function addUses(imageId: ImageId, count: number): OperationId[] {
  return db.transaction((tx) =>
    Array.from({ length: count }, (_, createdAt) => {
      const id = newId();
      const ended = { status: "FAILED", createdAt, finishedAt: createdAt } as const;
      tx.insert(operations)
        .values({ id, accountId: alice, kind: "instance", imageId, ...ended })
        .run();
      return id;
    }),
  );
}

/** Images that were made from `parentId` and have its layer. */
function addChildren(parentId: ImageId, count: number): ImageId[] {
  const layerId = getImage(db, alice, parentId)?.layerId as LayerId;
  return db.transaction((tx) =>
    Array.from({ length: count }, (_, at) => {
      const image = someImage(layerId, parentId);
      tx.insert(images)
        .values({ ...image, accountId: alice, createdAt: at })
        .run();
      insertHistory(db, { image, operationId: newId(), startedAt: null, now: at });
      return image.id;
    }),
  );
}

/** An image with a lineage of `count` deleted images. */
function addLineage(count: number): ImageId {
  const base = importImage(db);
  const layerId = getImage(db, alice, base)?.layerId as LayerId;
  let image = { ...someImage(layerId), id: base };
  db.transaction((tx) => {
    for (let depth = 0; depth < count; depth++) {
      image = someImage(layerId, image.id) as typeof image;
      insertHistory(db, { image, operationId: newId(), startedAt: null, now: depth });
    }
    tx.insert(images)
      .values({ ...image, parentId: null, accountId: alice, createdAt: count })
      .run();
    tx.delete(images).where(eq(images.id, base)).run();
  });
  return image.id;
}

const count = (table: typeof images | typeof history): number => db.orm.select().from(table).all().length;
const references = (id: ImageId): number =>
  db.orm.select().from(operations).where(eq(operations.imageId, id)).all().length;
const broken = () => db.orm.all(sql`pragma foreign_key_check`);

/** Runs `work`. Returns the largest number of rows that one of its transactions changed, and the number of transactions. */
async function transactionsOf(work: () => unknown) {
  const transaction = db.transaction.bind(db);
  const total = () => Object.values(db.orm.get<object>(sql`select total_changes()`))[0] as number;
  const sizes: number[] = [];
  db.transaction = (inner) => {
    const before = total();
    const result = transaction(inner);
    sizes.push(total() - before);
    return result;
  };
  await work();
  db.transaction = transaction;
  return { rowsMax: Math.max(...sizes), count: sizes.length };
}

describe("the deletion of an image", () => {
  const withUses = () => {
    const id = importImage(db);
    addUses(id, MANY_COUNT);
    return id;
  };
  const withChildren = () => {
    const id = importImage(db);
    addChildren(id, MANY_COUNT);
    return id;
  };
  test.each([
    ["with many operations", withUses, 0],
    ["with a long lineage of deleted images", () => addLineage(MANY_COUNT), 0],
    // The step of an image stays as long as those of its children.
    ["from which many were made", withChildren, MANY_COUNT + 1],
  ])("%s changes a bounded number of rows at a time", async (_, add, stepsLeft) => {
    const id = add();
    const work = await transactionsOf(async () => {
      expect(deleteImage(db, alice, id)).toHaveProperty("deleted");
      await finishRemovals(db);
    });
    expect(work.count).toBeGreaterThanOrEqual(MANY_COUNT / REMOVED_ROWS_MAX);
    // In addition, the row itself changes its account, which is new, its step is deleted, and the lineage is closed again.
    expect(work.rowsMax).toBeLessThanOrEqual(REMOVED_ROWS_MAX + 4);
    expect(imagesBeingRemoved(db).size).toBe(0);
    expect(references(id)).toBe(0);
    expect(broken()).toEqual([]);
    expect(count(history)).toBe(stepsLeft);
  });

  test("that few rows refer to is one transaction", async () => {
    const id = importImage(db);
    addUses(id, 10);
    const [child] = addChildren(id, 10);
    const work = await transactionsOf(async () => {
      expect(deleteImage(db, alice, id)).toHaveProperty("deleted");
      await finishRemovals(db);
    });
    expect(work.count).toBe(1);
    expect(db.orm.select().from(images).where(eq(images.id, id)).all()).toEqual([]);
    expect(getHistory(db, id)).toMatchObject({ exists: false });
    expect(getImage(db, alice, child as ImageId)?.parentId).toBeNull();
  });

  test("ends an ancestor's lineage where another image stands on it", async () => {
    const id = addLineage(3);
    const [, , above] = (await lineage(db, id, ALL, BY)).map(({ imageId }) => imageId);
    const layerId = getImage(db, alice, id)?.layerId as LayerId;
    const other = someImage(layerId, above);
    db.orm
      .insert(images)
      .values({ ...other, parentId: null, accountId: alice, createdAt: 9 })
      .run();
    insertHistory(db, { image: other, operationId: newId(), startedAt: null, now: 9 });
    deleteImage(db, alice, id);
    expect(await lineage(db, other.id, ALL, BY)).toHaveLength(3);
    expect(count(history)).toBe(3);
    deleteImage(db, alice, other.id);
    expect(count(history)).toBe(0);
  });
});

describe("an image whose removal has only begun", () => {
  let id: ImageId;
  let uses: OperationId[];
  let child: ImageId;
  let grandchild: ImageId;
  beforeEach(() => {
    id = importImage(db, { tag: "gone", now: 1 });
    uses = addUses(id, MANY_COUNT);
    child = addChildren(id, 1)[0] as ImageId;
    grandchild = addChildren(child, 1)[0] as ImageId;
    deleteImage(db, alice, child);
    expect(deleteImage(db, alice, id)).toHaveProperty("deleted");
    expect(references(id)).toBeGreaterThan(MANY_COUNT / 2);
  });

  test("is gone for all callers", async () => {
    expect(getImage(db, alice, id)).toBeNull();
    expect(resolveImage(db, alice, { tag: "gone" })).toBeNull();
    expect((await listImages(db, alice, ALL)).map((image) => image.id)).toEqual([grandchild]);
    expect(setTag(db, alice, id, { name: "x", change: "added", now: 2 })).toBeNull();
    expect(deleteImage(db, alice, id)).toBe("not_found");
    const operation = {
      id: newId(),
      accountId: alice,
      kind: "instance",
      request: null,
      hadCredentials: false,
    } as const;
    expect(() => insertOperation(db, { ...operation, imageId: id, now: 2 })).toThrow(ApiError);
    expect(setTag(db, alice, grandchild, { name: "gone", change: "added", now: 2 })).toMatchObject({ tag: "gone" });
  });

  test("has no operation and no image that refers to it", async () => {
    const last = uses.at(-1) as OperationId;
    expect(getOperation(db, alice, last)?.imageId).toBeNull();
    expect((await listOperations(db, alice, ALL)).filter(({ imageId }) => imageId !== null)).toEqual([]);
    expect(branchOperationsOf(db, alice, [last])).toMatchObject([{ imageId: null }]);
    expect((await lineage(db, grandchild, ALL, BY)).map(({ exists }) => exists)).toEqual([true, false, false]);
    expect(await descendants(db, id, { ...ALL, recursive: true }, BY)).toHaveLength(2);
    expect(walkUp(db, child, 10)).toMatchObject({ id, exists: false, stepsCount: 1 });
  });

  test("is not a parent in the branches", () => {
    const direct = addChildren(grandchild, MANY_COUNT).at(-1) as ImageId;
    deleteImage(db, alice, grandchild);
    const nodes = branchImagesFrom(db, alice, { createdAt: 0, id: "" as ImageId }, null, 10_000);
    expect(nodes).toHaveLength(MANY_COUNT);
    expect(nodes.filter(({ hasParent }) => hasParent)).toEqual([]);
    expect(nodes.find((node) => node.id === direct)?.madeFromId).toBe(grandchild);
  });

  test("counts for no account, and is not removed again for its age", async () => {
    expect((await accountSpaces(db, 10)).map(({ accountId }) => accountId)).toEqual([alice]);
    expect((await largestImages(db, 10)).map((image) => image.id)).toEqual([grandchild]);
    expect(deleteExpiredImages(db.orm, [id], 1e6)).toEqual([]);
    const bounds = { imagesBeforeMs: 1e6, mergedBeforeMs: 0, filesBeforeMs: null };
    expect(await previewExpiry(db, bounds, [])).toMatchObject({ images: 1, layers: [expect.any(String)] });
  });

  test("is removed by the next process if this one dies", async () => {
    using other = openDatabase(store.path);
    expect(getOperation(other, alice, uses.at(-1) as OperationId)?.imageId).toBeNull();
    await finishRemovals(other);
    expect(references(id)).toBe(0);
    expect(db.orm.select().from(images).where(eq(images.id, id)).all()).toEqual([]);
    expect(broken()).toEqual([]);
    // Its step stays: the lineage of an existing image continues below it.
    expect(await lineage(db, grandchild, ALL, BY)).toHaveLength(3);
  });

  test("stays so when its removal is interrupted", async () => {
    const left = AbortSignal.abort(new Error("stopped"));
    expect(await throwing(finishRemovals(db, left))).toThrow("stopped");
    expect(references(id)).toBeGreaterThan(0);
    expect(imagesBeingRemoved(db)).toEqual(new Set([id]));
  });
});

test("expired images that many rows refer to are hidden at once, and removed later", async () => {
  const ids = Array.from({ length: 3 }, () => importImage(db));
  for (const id of ids) addUses(id, REMOVED_ROWS_MAX);
  const work = await transactionsOf(() => {
    const removed = db.transaction((tx) => deleteExpiredImages(tx, ids, 1e6));
    expect(removed.map(({ id }) => id).sort()).toEqual(ids.toSorted());
  });
  expect(work.rowsMax).toBeLessThanOrEqual(REMOVED_ROWS_MAX + ids.length + 1);
  expect(await listImages(db, alice, ALL)).toEqual([]);
  await finishRemovals(db);
  expect(count(images)).toBe(0);
});

test("layers are deleted from the top, a limited number at a time; the rest is left for the next time", () => {
  const chain: LayerId[] = [];
  db.transaction((tx) => {
    for (let depth = 0; depth < 2.5 * REMOVED_LAYERS_MAX; depth++) {
      const layer = someLayer({ parentId: chain[0] ?? null });
      tx.insert(layers)
        .values({ ...layer, createdAt: 1 })
        .run();
      chain.unshift(layer.id);
    }
  });
  const other = someLayer();
  db.orm
    .insert(layers)
    .values({ ...other, createdAt: 1 })
    .run();
  const remove = (ids: readonly LayerId[], held: LayerId | null = null) =>
    db.transaction((tx) => deleteUnreferencedLayers(tx, ids, (id) => id === held));
  const [first, second] = [chain.slice(0, REMOVED_LAYERS_MAX), chain.slice(REMOVED_LAYERS_MAX)];
  expect(remove([chain[0] as LayerId, other.id])).toEqual({ layers: first, left: [second[0] as LayerId, other.id] });
  expect(remove([second[0] as LayerId], second[5])).toEqual({ layers: second.slice(0, 5), left: [] });
  expect(remove([second[5] as LayerId]).layers).toEqual(second.slice(5, 5 + REMOVED_LAYERS_MAX));
  expect(remove([second.at(-1) as LayerId])).toEqual({ layers: [], left: [] });
});
