import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, rm, stat, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import type { CgroupTree } from "../../../src/cgroup/cgroup.ts";
import { collectGarbage } from "../../../src/cli/gc/collect.ts";
import { loadConfig } from "../../../src/config/config.ts";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import { getFile, isBlobReferenced, upsertFile } from "../../../src/db/files.ts";
import { getImage, imagesBeingRemoved } from "../../../src/db/images/images.ts";
import { layerIds } from "../../../src/db/images/layers.ts";
import { allMergedLayers, insertMergedLayer } from "../../../src/db/images/merged-layers.ts";
import { setTag } from "../../../src/db/images/tags.ts";
import { failOperation, requestCancel, startOperation } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { deleteImage, REMOVED_ROWS_MAX } from "../../../src/db/removal.ts";
import type { AccountId, ImageId, LayerId } from "../../../src/domain/ids.ts";
import { silentLog } from "../../../src/log.ts";
import { blobPath, listBlobs, receiveBlob, removeBlob } from "../../../src/storage/blobs.ts";
import { eventLogPath } from "../../../src/storage/events/event-file.ts";
import { LayerStore } from "../../../src/storage/layers/layer-store.ts";
import { layerBytes, layerPath } from "../../../src/storage/layers/layers.ts";
import { type DataLayout, dataLayout } from "../../../src/storage/layout.ts";
import { openStaging } from "../../../src/storage/staging.ts";
import { AccountChanges } from "../../../src/supervisor/account-changes.ts";
import { OrphanSweep, startJanitor, sweep } from "../../../src/supervisor/janitor.ts";
import {
  type ReclaimOptions,
  reclaim,
  releaseImage,
  releaseWhenRead,
  removeBrokenMergedLayers,
} from "../../../src/supervisor/reclaim.ts";
import { lockFile } from "../../../src/system/lock.ts";
import { makeLayer } from "../../support/api/layers.ts";
import { addExecuting, addOperation, alice, bob, newId, someImage } from "../../support/database.ts";
import { throwing } from "../../support/failures.ts";
import { listLayers } from "../../support/images/layer-files.ts";
import { pause, turns, until } from "../../support/waiting.ts";

const NOTHING = { images: 0, layers: 0, layerBytes: 0, files: 0, fileBytes: 0, memoryImages: 0, memoryImageBytes: 0 };
const NOW = 1_000_000;

let directory: string;
let layout: DataLayout;
let db: Database;
let layers: LayerStore;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-space-"));
  layout = dataLayout(directory);
  await layout.ensure();
  db = openDatabase(layout.database);
  layers = new LayerStore({ layout, chainOf: (topId) => layerIds(db, topId) });
});
afterEach(async () => {
  layers[Symbol.dispose]();
  db[Symbol.dispose]();
  await rm(directory, { recursive: true });
});

const options = (more: Partial<ReclaimOptions> = {}): ReclaimOptions => ({
  ...{
    db,
    layout,
    layers,
    log: silentLog,
    clock: () => NOW,
    filesTtlMs: null,
    untaggedTtlMs: null,
    memoryTtlMs: 86_400_000,
  },
  ...more,
});
const real = { dryRun: false };

test("the expiry of images is reported to the listeners of their accounts", async () => {
  const changes = new AccountChanges();
  const heard: unknown[] = [];
  using _listening = changes.listen(alice, { changed: (change) => void heard.push(change), stopped: () => undefined });
  const [old, foreign] = [await addImage(null, 1), await addImage(null, 1, bob)];
  await addImage(null, NOW);
  expect(await reclaim(options({ untaggedTtlMs: NOW / 2, changes }), { dryRun: true })).toMatchObject({ images: 2 });
  expect(heard).toEqual([]);
  expect(await reclaim(options({ untaggedTtlMs: NOW / 2, changes }), real)).toMatchObject({ images: 2 });
  expect([heard, getImage(db, bob, foreign)]).toEqual([[{ type: "deleted", id: old }], null]);
});

/** An image on `parent`, made at `now`. */
async function addImage(parent: ImageId | null, now: number, account = alice): Promise<ImageId> {
  const below = parent === null ? null : getImage(db, account, parent);
  const content = Buffer.alloc(100_000, "x");
  const { id, diskBytes, entryCount } = await makeLayer(layout, [{ path: "f", type: "f", content }]);
  const operationId = addExecuting(db, { accountId: account, now, ...(parent === null ? {} : { imageId: parent }) });
  const image = someImage(id, parent);
  const sizeBytes = await layerBytes(layout, id);
  const parentId = below?.layerId ?? null;
  const layer = { id, parentId, format: "ext4" as const, sizeBytes, diskBytes, entryCount };
  expect(publishOperation(db, { operationId, result: {}, now, layer, image })).not.toBeNull();
  return image.id;
}
const layerOf = (id: ImageId): LayerId => getImage(db, alice, id)?.layerId as LayerId;

describe("images without a tag", () => {
  test("are kept for ever unless a time to live is set", async () => {
    await addImage(null, 1);
    expect(await reclaim(options(), real)).toEqual(NOTHING);
  });

  test("are removed after that time, with the layers that nothing else needs", async () => {
    const base = await addImage(null, 100);
    const tagged = await addImage(base, 100);
    setTag(db, alice, tagged, { name: "keep", change: "replaced", now: 1 });
    const leaf = await addImage(tagged, 100);
    const fresh = await addImage(base, NOW - 10);
    const paths = [base, tagged, fresh].map((id) => layerPath(layout, layerOf(id)));
    const gone = layerOf(leaf);
    const bytes = await layerBytes(layout, gone);
    // base counts as used when fresh was made of it.
    expect(await reclaim(options({ untaggedTtlMs: 1000 }), real)).toEqual({
      ...NOTHING,
      images: 1,
      layers: 1,
      layerBytes: bytes,
    });
    expect(getImage(db, alice, leaf)).toBeNull();
    expect([base, tagged, fresh].map((id) => getImage(db, alice, id)?.id)).toEqual([base, tagged, fresh]);
    expect(paths.filter((path) => !existsSync(path))).toEqual([]);
    expect(existsSync(layerPath(layout, gone))).toBe(false);
  });

  test("stay while an operation that waits or runs needs them", async () => {
    const waiting = await addImage(null, 100);
    const running = await addImage(null, 100);
    addOperation(db, { imageId: waiting, now: 1 });
    addExecuting(db, { imageId: running, now: 1 });
    expect(await reclaim(options({ untaggedTtlMs: 1000 }), real)).toEqual(NOTHING);
    expect(deleteImage(db, alice, waiting)).toBe("in_use");
    expect(deleteImage(db, bob, waiting)).toBe("not_found");
  });

  test("of a chain are removed down to the first that is still used, in one pass", async () => {
    const chain = [await addImage(null, 100)];
    for (let depth = 0; depth < 20; depth++) chain.push(await addImage(chain.at(-1) as ImageId, 100));
    setTag(db, alice, chain[5] as ImageId, { name: "here", change: "replaced", now: 1 });
    const reclaimed = await reclaim(options({ untaggedTtlMs: 1000 }), real);
    expect([reclaimed.images, reclaimed.layers]).toEqual([20, 15]);
    expect((await listLayers(layout)).size).toBe(6);
  });
});

describe("a dry run", () => {
  test("reports what the real run then does, and changes nothing", async () => {
    const base = await addImage(null, 100);
    await addImage(base, 100);
    const { sha256 } = await receiveBlob(layout, chunksOf("content"), 100);
    upsertFile(db, { accountId: alice, sha256, sizeBytes: 7, now: 1 });
    const policy = options({ untaggedTtlMs: 1000, filesTtlMs: 1000 });
    const foreseen = await reclaim(policy, { dryRun: true });
    expect(foreseen).toMatchObject({ images: 2, layers: 2, files: 1 });
    const disk = (await stat(layerPath(layout, layerOf(base)))).blocks * 512;
    expect(foreseen.layerBytes).toBeGreaterThanOrEqual(2 * disk);
    expect(getImage(db, alice, base)).not.toBeNull();
    expect((await listLayers(layout)).size).toBe(2);
    expect(await reclaim(policy, { dryRun: true })).toEqual(foreseen);
    expect(await reclaim(policy, real)).toEqual(foreseen);
    expect([(await listLayers(layout)).size, await listBlobs(layout)]).toEqual([0, []]);
  });

  test("keeps what the real run keeps: images in use, layers that are read or shared", async () => {
    const chain = [await addImage(null, 100)];
    for (let depth = 0; depth < 6; depth++) chain.push(await addImage(chain.at(-1) as ImageId, 100));
    setTag(db, alice, chain[1] as ImageId, { name: "here", change: "replaced", now: 1 });
    const branch = await addImage(chain[3] as ImageId, 100);
    const merge = (belowId: LayerId, topId: LayerId, now: number) => {
      const id = newId<LayerId>();
      const row = { id, accountId: alice, belowId, topId, sizeBytes: 1, entryCount: 1, now };
      expect(insertMergedLayer(db, row)).toBe(true);
    };
    const later = NOW + 30 * 86_400_000;
    merge(layerOf(chain[0] as ImageId), layerOf(chain[1] as ImageId), 1);
    merge(layerOf(chain[0] as ImageId), layerOf(chain[2] as ImageId), later);
    merge(layerOf(chain[2] as ImageId), layerOf(chain[6] as ImageId), later);
    for (const [name, accounts] of Object.entries({ shared: [alice, bob], own: [alice], young: [bob] })) {
      const { sha256 } = await receiveBlob(layout, chunksOf(name), 100);
      for (const accountId of accounts) {
        const now = name === "young" || accountId === bob ? later : 1;
        upsertFile(db, { accountId, sha256, sizeBytes: name.length, now });
      }
    }
    const policy = options({ untaggedTtlMs: 1000, filesTtlMs: 1000, clock: () => later });
    const held = layers.hold([layerOf(chain[2] as ImageId)]);
    const foreseen = await reclaim(policy, { dryRun: true });
    // Six images of the chain and the branch; the layers above the one that is read, and two merged layers.
    expect(foreseen).toMatchObject({ images: 7, layers: 4 + 1 + 2, files: 2 });
    expect(await reclaim(policy, real)).toEqual(foreseen);
    expect(getImage(db, alice, branch)).toBeNull();
    held[Symbol.dispose]();
    expect(await reclaim(policy, { dryRun: true })).toMatchObject({ images: 0, layers: 2, files: 0 });
    expect(await reclaim(policy, real)).toMatchObject({ images: 0, layers: 2, files: 0 });
    expect((await listLayers(layout)).size).toBe(2);
  });
});

test("a start removes all files that no row refers to, and nothing else", async () => {
  const image = await addImage(null, 100);
  const { sha256 } = await receiveBlob(layout, chunksOf("kept"), 100);
  upsertFile(db, { accountId: alice, sha256, sizeBytes: 4, now: 1 });
  await receiveBlob(layout, chunksOf("left"), 100);
  const ended = addExecuting(db);
  publishOperation(db, { operationId: ended, result: {}, now: 2 });
  // The process crashed between its outputs and its result.
  const unpublished = addExecuting(db);
  failOperation(db, unpublished, { error: "unavailable", message: "restarted", details: {} }, 2);
  const orphans = Array.from({ length: 700 }, () => newId());
  for (const id of [...orphans, ended, unpublished]) await writeFile(eventLogPath(layout, id), "x");
  for (const id of orphans as string[]) await writeFile(layerPath(layout, id as LayerId), "x");
  await using sweeping = new OrphanSweep({ ...options(), operationsRetentionMs: 1 });
  sweeping.begin();
  await sweeping.ended;
  expect(await listLayers(layout)).toEqual(new Set([layerOf(image)]));
  expect(await listBlobs(layout)).toEqual([sha256]);
  expect(new Set(await readdir(layout.events))).toEqual(new Set([ended, unpublished]));
});

test("a start removes half-written files, but none that another process may be writing", async () => {
  const [old, young] = [".key.0123456789ab", ".key.ba9876543210"] as const;
  for (const directory of [layout.root, layout.keys]) {
    for (const name of [old, young]) await writeFile(join(directory, name), "half");
    await utimes(join(directory, old), 1, 1);
  }
  await writeFile(join(layout.keys, ".hidden"), "");
  await utimes(join(layout.keys, ".hidden"), 1, 1);
  const cgroups = { list: () => Promise.resolve([]) } as unknown as CgroupTree;
  await sweep({ ...options(), operationsRetentionMs: 1 }, cgroups);
  expect(existsSync(join(layout.root, old))).toBe(false);
  expect(existsSync(join(layout.root, young))).toBe(true);
  expect((await readdir(layout.keys)).sort()).toEqual([".hidden", young].sort());
});

test("layers that are being read are removed in a later pass", async () => {
  const image = await addImage(null, 100);
  const layer = layerOf(image);
  const held = layers.hold([layer]);
  deleteImage(db, alice, image);
  expect(await reclaim(options(), real)).toEqual(NOTHING);
  expect(existsSync(layerPath(layout, layer))).toBe(true);
  held[Symbol.dispose]();
  held[Symbol.dispose]();
  expect((await reclaim(options(), real)).layers).toBe(1);
  expect(existsSync(layerPath(layout, layer))).toBe(false);
});

test("layers that were spared for a reader are removed when the last one is done, and only those", async () => {
  await using _releasing = releaseWhenRead(options());
  const base = await addImage(null, 100);
  const top = await addImage(base, 100);
  const [baseLayer, topLayer] = [layerOf(base), layerOf(top)];
  const readers = [layers.hold([baseLayer, topLayer]), layers.hold([baseLayer, topLayer])];
  deleteImage(db, alice, top);
  await releaseImage(options(), { id: top, layerId: topLayer });
  readers[0]?.[Symbol.dispose]();
  await pause("a removal would be done by then", 50);
  expect((await listLayers(layout)).size).toBe(2);
  readers[1]?.[Symbol.dispose]();
  await until("the layer is gone", async () => !(await listLayers(layout)).has(topLayer));
  expect((await listLayers(layout)).has(baseLayer)).toBe(true);
  // A layer that was not to be removed stays after its reader.
  layers.hold([baseLayer])[Symbol.dispose]();
  await pause("a removal would be done by then", 50);
  expect((await listLayers(layout)).has(baseLayer)).toBe(true);
});

describe("an upload of known content", () => {
  test("during the removal of that content: the new row always has its content", async () => {
    for (let round = 0; round < 5; round++) {
      const upload = receiveBlob(layout, chunksOf(`content ${round}`), 100, (blob) =>
        upsertFile(db, { accountId: alice, ...blob, now: 1 }),
      );
      const sha256 = new Bun.CryptoHasher("sha256").update(`content ${round}`).digest("hex");
      let isDone = false;
      void upload.then(() => {
        isDone = true;
      });
      while (!isDone) {
        await removeBlob(layout, sha256, () => isBlobReferenced(db.orm, sha256));
        await turns(1);
      }
      expect(getFile(db, alice, { uuid: (await upload).id })?.sha256).toBe(sha256);
      expect(existsSync(blobPath(layout, sha256))).toBe(true);
    }
  });
});

describe("coppice gc", () => {
  const config = () =>
    loadConfig({ environment: {}, flags: { "data-dir": directory, "images-untagged-ttl": "1s" }, file: undefined });

  test("works on the directory when no daemon runs, and finds files that no row refers to", async () => {
    await addImage(null, 100);
    const orphan = await makeLayer(layout, [{ path: "f", type: "f", content: "x" }]);
    await receiveBlob(layout, chunksOf("orphan"), 100);
    const foreseen = await collectGarbage(config(), silentLog, true);
    expect(foreseen).toMatchObject({ images: 1, layers: 2, files: 1 });
    expect(existsSync(layerPath(layout, orphan.id))).toBe(true);
    expect(await collectGarbage(config(), silentLog, false)).toEqual(foreseen);
    expect([(await listLayers(layout)).size, await listBlobs(layout)]).toEqual([0, []]);
  });

  test("refuses a directory that is in use, and one that is not a data directory", async () => {
    using lock = lockFile(layout.lock);
    expect(lock).not.toBeNull();
    expect(await throwing(collectGarbage(config(), silentLog, false))).toThrow("does not answer");
    const nowhere = loadConfig({ environment: {}, flags: { "data-dir": join(directory, "none") }, file: undefined });
    expect(await throwing(collectGarbage(nowhere, silentLog, false))).toThrow("no appliance's data");
  });
});

async function* chunksOf(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

test("images of a deleted operation stay, and so do operations of a deleted image", async () => {
  const base = await addImage(null, 100);
  const child = await addImage(base, 100);
  const operation = addOperation(db, { imageId: base, now: 5 });
  expect(startOperation(db, operation, 6)).toBe(true);
  expect(deleteImage(db, alice, base)).toBe("in_use");
  expect(publishOperation(db, { operationId: operation, result: {}, now: 7 })).not.toBeNull();
  expect(deleteImage(db, alice, base)).toEqual({ deleted: expect.any(String) });
  expect(getImage(db, alice, child)?.parentId).toBeNull();
});

test("the rest of an image that many operations refer to is removed by the next pass, together with its layer", async () => {
  const image = await addImage(null, NOW);
  const layer = layerOf(image);
  for (let use = 0; use < 2 * REMOVED_ROWS_MAX; use++) {
    const id = addOperation(db, { imageId: image, now: NOW });
    expect(requestCancel(db, alice, id, NOW)).toBe("cancelled");
  }
  expect(deleteImage(db, alice, image)).toEqual({ deleted: layer });
  expect(imagesBeingRemoved(db).size).toBe(1);
  expect((await reclaim(options(), real)).layers).toBe(1);
  expect([imagesBeingRemoved(db).size, (await listLayers(layout)).size]).toEqual([0, 0]);
});

test("layers that cannot be removed from a full disk are removed by the next pass; their image stays deleted", async () => {
  const image = await addImage(null, 100);
  const layer = layerOf(image);
  deleteImage(db, alice, image);
  const full = Object.assign(new Error("database or disk is full"), { code: "SQLITE_FULL" });
  const onFullDisk = {
    ...options(),
    db: {
      transaction() {
        throw full;
      },
    } as unknown as Database,
  };
  await releaseImage(onFullDisk, { id: image, layerId: layer });
  expect((await listLayers(layout)).has(layer)).toBe(true);
  expect((await reclaim(options(), real)).layers).toBe(1);
  expect((await listLayers(layout)).has(layer)).toBe(false);
});

describe("the remains of a former process", () => {
  test("include merged layers: one with a missing file is forgotten, a whole one is kept", async () => {
    const base = await addImage(null, 1);
    const top = await addImage(base, 2);
    const content = Buffer.from("x");
    const add = async (account: AccountId): Promise<LayerId> => {
      const { id } = await makeLayer(layout, [{ path: "f", type: "f", content }]);
      const run = { belowId: layerOf(base), topId: layerOf(top), sizeBytes: 1, entryCount: 1, now: 1 };
      addOperation(db, { accountId: account });
      expect(insertMergedLayer(db, { id, accountId: account, ...run })).toBe(true);
      return id;
    };
    const [whole, broken] = [await add(alice), await add(bob)];
    await rm(layerPath(layout, broken));
    expect(await removeBrokenMergedLayers({ db, layers })).toEqual([broken]);
    expect(allMergedLayers(db)).toEqual([whole]);
    expect((await listLayers(layout)).has(broken)).toBe(false);
  });

  test("include those of an interrupted backup, which the first pass removes", async () => {
    await mkdir(join(directory, "backup-Abc123", "keys"), { recursive: true });
    await mkdir(join(directory, "restore-xyz789"));
    await using running = await openStaging(layout, "backup");
    {
      await using _janitor = startJanitor({ ...options(), operationsRetentionMs: 1 });
    }
    const left = (await readdir(directory)).filter((name) => /^(backup|restore)-/.test(name));
    expect(left).toEqual([basename(running.path)]);
  });
});
