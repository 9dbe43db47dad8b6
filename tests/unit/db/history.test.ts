import { describe, expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { ne } from "drizzle-orm";
import Libsql from "libsql";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import { unreferencedLayers } from "../../../src/db/expiry.ts";
import { descendants, getHistory, insertHistory, lineage } from "../../../src/db/images/history.ts";
import { getImage } from "../../../src/db/images/images.ts";
import { MIGRATIONS } from "../../../src/db/migrations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { deleteImage, deleteUnreferencedLayers } from "../../../src/db/removal.ts";
import { images, layers } from "../../../src/db/schema.ts";
import type { ImageId, LayerId } from "../../../src/domain/ids.ts";
import { finishRemovals } from "../../../src/supervisor/reclaim.ts";
import {
  addExecuting,
  alice,
  databasePerTest,
  migrationNames,
  newId,
  someImage,
  someLayer,
  writeOlderDatabase,
} from "../../support/database.ts";
import { testDirectory } from "../../support/images/layer-files.ts";

const DEPTH_COUNT = 1000;
const ALL = { limit: 10_000, offset: 0 };
const BY = { accountId: alice };

let db: Database;
databasePerTest((each) => {
  db = each.db;
});

/** An image made from `parent`, with its own layer. */
function addImage(parent: { id: ImageId; layerId: LayerId } | null) {
  const layer = someLayer({ parentId: parent?.layerId ?? null });
  const image = someImage(layer.id, parent?.id ?? null);
  const publication = { operationId: addExecuting(db), result: {}, now: 1, layer, image };
  expect(publishOperation(db, publication)).not.toBeNull();
  return image;
}

/** A base and a chain of runs on it, written in one transaction. */
function addChain() {
  const chain = [addImage(null)];
  db.transaction((tx) => {
    for (let depth = 0; depth < DEPTH_COUNT; depth++) {
      const parent = chain.at(-1) as (typeof chain)[number];
      const layer = someLayer({ parentId: parent.layerId });
      const image = someImage(layer.id, parent.id);
      tx.insert(layers)
        .values({ ...layer, createdAt: depth })
        .run();
      tx.insert(images)
        .values({ ...image, accountId: alice, createdAt: depth })
        .run();
      insertHistory(db, { image, operationId: newId(), startedAt: null, now: depth });
      chain.push(image);
    }
  });
  return chain;
}

describe("a chain of 1000 runs", () => {
  test("is read at once, and is deleted with its last image", async () => {
    const chain = addChain();
    const ids = chain.map(({ id }) => id);
    const [base, top] = [ids[0] as ImageId, ids.at(-1) as ImageId];
    expect((await lineage(db, top, ALL, BY)).map((row) => row.imageId)).toEqual(ids.toReversed());
    expect(await descendants(db, base, { ...ALL, recursive: true }, BY)).toHaveLength(DEPTH_COUNT);
    // Each deletion is synced to the disk, so this tries only some of them.
    const gone = ids.filter((_, index) => index % 50 === 0 && index < DEPTH_COUNT);
    for (const id of gone) deleteImage(db, alice, id);
    expect((await lineage(db, top, ALL, BY)).map((row) => row.imageId)).toEqual(ids.toReversed());
    expect((await lineage(db, top, ALL, BY)).filter((row) => !row.exists)).toHaveLength(gone.length);
    db.orm.delete(images).where(ne(images.id, top)).run();
    expect((await lineage(db, top, ALL, BY)).filter((row) => row.exists)).toHaveLength(1);
    expect(await unreferencedLayers(db, 10)).toEqual([]);
    deleteImage(db, alice, top);
    await finishRemovals(db);
    expect(getHistory(db, base)).toBeNull();
    const removed: LayerId[] = [];
    for (let left: readonly LayerId[] = [chain.at(-1)?.layerId as LayerId]; left.length > 0; ) {
      const part = db.transaction((tx) => deleteUnreferencedLayers(tx, left, () => false));
      removed.push(...part.layers);
      left = part.left;
    }
    expect(removed).toEqual(chain.map(({ layerId }) => layerId).toReversed());
  });
});

test("a held layer keeps the layers below it", async () => {
  const base = addImage(null);
  const middle = addImage(base);
  const top = addImage(middle);
  for (const { id } of [base, middle, top]) deleteImage(db, alice, id);
  const removed = async (held: LayerId) => {
    const candidates = await unreferencedLayers(db, 10);
    return db.transaction((tx) => deleteUnreferencedLayers(tx, candidates, (id) => id === held).layers);
  };
  expect(await removed(middle.layerId)).toEqual([top.layerId]);
  expect(await removed(top.layerId)).toEqual([middle.layerId, base.layerId]);
});

test("a store of an older version keeps its images and their history", async () => {
  const directory = testDirectory("migration");
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true }) };
  const path = join(directory, "coppice.db");
  const older = writeOlderDatabase(path);
  const client = new Libsql(path);
  client.exec(`
    INSERT INTO accounts VALUES ('alice', 1);
    INSERT INTO layers (id, format, size_bytes, disk_bytes, entry_count, created_at) VALUES ('l1', 'erofs', 1, 1, 1, 1);
    INSERT INTO images (id, account_id, layer_id, size_bytes, created_at) VALUES ('i1', 'alice', 'l1', 5, 3);
    INSERT INTO history (image_id, operation_id, created_at, size_bytes) VALUES ('i1', 'o1', 3, 5);
  `);
  client.close();
  using opened = openDatabase(path);
  expect(migrationNames(opened)).toEqual([...older, MIGRATIONS.at(-1)?.name ?? ""]);
  expect(getImage(opened, alice, "i1" as ImageId)).toMatchObject({ sizeBytes: 5, tag: null });
  expect(await lineage(opened, "i1" as ImageId, ALL, BY)).toMatchObject([
    { imageId: "i1", parentId: null, sizeBytes: 5 },
  ]);
});
