import { expect, test } from "bun:test";
import { publishOperation } from "../../../src/db/publish.ts";
import { images } from "../../../src/db/schema.ts";
import { accountSpaces, largestImages, liveWork } from "../../../src/db/totals.ts";
import type { AccountId, ImageId } from "../../../src/domain/ids.ts";
import {
  addExecuting,
  addOperation,
  alice,
  bob,
  databasePerTest,
  newId,
  someImage,
  someLayer,
  type TestDatabase,
} from "../../support/database.ts";

let store: TestDatabase;
databasePerTest((each) => {
  store = each;
});

/** A base of 100 bytes, and on it a run that added 20, of alice; bob has an image of the same base. */
function shareBase(): { readonly base: ImageId; readonly run: ImageId; readonly shared: ImageId } {
  const { db } = store;
  const below = someLayer({ sizeBytes: 100 });
  const base = { ...someImage(below.id), sizeBytes: 100 };
  const imported = addExecuting(db, { kind: "image_import" });
  publishOperation(db, { operationId: imported, result: {}, now: 5, layer: below, image: base, tag: "base" });
  const above = someLayer({ parentId: below.id, sizeBytes: 20 });
  const run = { ...someImage(above.id, base.id), sizeBytes: 20 };
  publishOperation(db, { operationId: addExecuting(db), result: {}, now: 6, layer: above, image: run });
  addExecuting(db, { accountId: bob });
  const shared = { id: newId<ImageId>(), accountId: bob, layerId: below.id, sizeBytes: 100, createdAt: 7 };
  db.orm.insert(images).values(shared).run();
  // Another import of the same base makes no layer.
  const again = { id: newId<ImageId>(), accountId: bob, layerId: below.id, sizeBytes: 0, createdAt: 8 };
  db.orm.insert(images).values(again).run();
  return { base: base.id, run: run.id, shared: shared.id };
}

test("an account's space is that of the layers that its images added, each once, shared ones for each account", async () => {
  shareBase();
  const none = { mergedLayerBytes: 0, fileCount: 0, fileBytes: 0 };
  const accounts = [
    { accountId: alice, imageCount: 2, layerBytes: 120, ...none },
    { accountId: bob, imageCount: 2, layerBytes: 100, ...none },
  ];
  expect(await accountSpaces(store.db, 10)).toEqual(accounts);
  expect(await accountSpaces(store.db, 1)).toEqual(accounts.slice(0, 1));
});

test("the largest images come first, with the tag that they show", async () => {
  const { base, run, shared } = shareBase();
  const largest = await largestImages(store.db, 3);
  expect(largest.map(({ id, tag, sizeBytes }) => [id, tag, sizeBytes]).sort()).toEqual(
    [
      [base, "base", 100],
      [shared, null, 100],
      [run, null, 20],
    ].sort(),
  );
  expect(largest.at(-1)).toEqual({ id: run, accountId: alice, tag: null, sizeBytes: 20, createdAt: 6 });
  expect(await largestImages(store.db, 2)).toEqual(largest.slice(0, 2));
});

test("live work is counted by account, and ended work is not", async () => {
  const { db } = store;
  const carol = "carol" as AccountId;
  expect(await liveWork(db)).toEqual([]);
  const ended = addExecuting(db, { accountId: carol, kind: "image_import" });
  const layer = someLayer();
  publishOperation(db, { operationId: ended, result: {}, now: 2, layer, image: someImage(layer.id) });
  addExecuting(db, { now: 3 });
  addOperation(db, { now: 9 });
  addOperation(db, { now: 8 });
  addExecuting(db, { accountId: bob, now: 4 });
  expect((await liveWork(db)).sort((a, b) => a.accountId.localeCompare(b.accountId))).toEqual([
    { accountId: alice, pendingCount: 2, executingCount: 1, oldestPendingAt: 8 },
    { accountId: bob, pendingCount: 0, executingCount: 1, oldestPendingAt: null },
  ]);
});
