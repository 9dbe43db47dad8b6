import { expect, test } from "bun:test";
import { sql } from "drizzle-orm";
import type { Database } from "../../../src/db/database.ts";
import { getImage, imageDefaults, listImagesSync, resolveImage } from "../../../src/db/images/images.ts";
import { setTag } from "../../../src/db/images/tags.ts";
import { getOperation, requestCancel } from "../../../src/db/operations.ts";
import { type Publication, publishOperation } from "../../../src/db/publish.ts";
import { deleteExpiredImages, deleteImage, isExpired } from "../../../src/db/removal.ts";
import { images } from "../../../src/db/schema.ts";
import type { AccountId, ImageId, LayerId } from "../../../src/domain/ids.ts";
import {
  addExecuting,
  alice,
  bob,
  databasePerTest,
  layerRow,
  newId,
  someImage,
  someLayer,
} from "../../support/database.ts";

let db: Database;
databasePerTest((opened) => {
  db = opened.db;
});

const KEY = "sha256:1 linux/amd64";

/** Publishes an import as the supervisor does. Returns the image of the result. */
function publish(more: Partial<Publication> & { now?: number; accountId?: AccountId; digest?: string } = {}): ImageId {
  const { now = 1, accountId = alice, digest = "sha256:1", ...publication } = more;
  const operationId = addExecuting(db, { accountId, kind: "image_import" });
  const layer = someLayer({ baseKey: `${digest} linux/amd64` });
  const image = { ...someImage(layer.id), digest };
  const fields = {
    layer,
    image,
    result: { image: image.id, digest },
    provesBase: true,
    reusesImage: true,
    ...publication,
  };
  expect(publishOperation(db, { operationId, now, ...fields })).not.toBeNull();
  return getOperation(db, accountId, operationId)?.result?.["image"] as ImageId;
}
const all = () => listImagesSync(db, alice, { limit: 100, offset: 0 }).map(({ id }) => id);

test("an import takes the image of the same digest, and makes one only when it must not or there is none", () => {
  const first = publish();
  expect(publish()).toBe(first);
  expect(all()).toEqual([first]);
  const other = publish({ digest: "sha256:2" });
  const another = publish({ reusesImage: false });
  expect(new Set([first, other, another]).size).toBe(3);
  // The oldest is reused.
  expect(publish()).toBe(first);
  deleteImage(db, alice, first);
  expect(publish()).toBe(another);
  deleteImage(db, alice, another);
  const again = publish();
  expect([first, other, another]).not.toContain(again);
  expect(getImage(db, alice, again)?.layerId).toBe(
    db.orm.select().from(images).where(sql`id = ${again}`).get()?.layerId as LayerId,
  );
});

test("an existing base has an image, too", () => {
  const first = publish();
  const layerId = getImage(db, alice, first)?.layerId as LayerId;
  const image = { ...someImage(layerId), digest: "sha256:1" };
  expect(publish({ layer: undefined, image })).toBe(first);
});

test("an image of another account, of a run, or without stored variables is not reused", () => {
  const theirs = publish({ accountId: bob });
  const mine = publish();
  expect(mine).not.toBe(theirs);
  const layerId = getImage(db, alice, mine)?.layerId as LayerId;
  const run = { ...someImage(layerId, mine), sizeBytes: 0 };
  publishOperation(db, { operationId: addExecuting(db), result: {}, now: 2, image: run });
  deleteImage(db, alice, mine);
  const next = publish({ now: 3 });
  expect([theirs, mine, run.id]).not.toContain(next);
  db.orm.run(sql`update images set variables = null where id = ${next}`);
  const newest = publish({ now: 4 });
  expect(newest).not.toBe(next);
  expect(publish({ now: 5 })).toBe(newest);
});

test("is found among any number of images that other accounts made of the same base", () => {
  const theirs = publish({ accountId: bob });
  const columns = Object.keys(db.orm.all<object>(sql`select * from images where id = ${theirs}`)[0] ?? {});
  const copied = columns.map((name) => (name === "id" ? "printf('%s-%d', id, n.value)" : name)).join(", ");
  const numbers = JSON.stringify(Array.from({ length: 1200 }, (_, number) => number));
  const from = `images, (select value from json_each('${numbers}')) n`;
  db.orm.run(sql.raw(`insert into images (${columns.join(", ")}) select ${copied} from ${from}`));
  const mine = publish();
  expect(mine).not.toBe(theirs);
  expect(publish()).toBe(mine);
});

test("a tag is added to the image, or replaces the one that it shows", () => {
  const first = publish({ tag: "a" });
  setTag(db, alice, first, { name: "b", change: "added", now: 2 });
  expect(publish({ tag: "c", tagChange: "added", now: 3 })).toBe(first);
  for (const tag of ["a", "b", "c"]) expect(resolveImage(db, alice, { tag })).toMatchObject({ id: first, tag: "c" });
  publish({ tag: "d", now: 4 });
  expect(resolveImage(db, alice, { tag: "c" })).toBeNull();
  for (const tag of ["a", "b", "d"]) expect(resolveImage(db, alice, { tag })?.tag).toBe("d");
  const other = publish({ digest: "sha256:2", tag: "b", tagChange: "added", now: 5 });
  expect(resolveImage(db, alice, { tag: "b" })?.id).toBe(other);
});

test("two imports of the same image at once have one image in the end", () => {
  // Both have pulled: each comes with a layer of its own.
  const [one, two] = [publish({ tag: "x" }), publish({ tag: "x" })];
  expect(two).toBe(one);
  expect(all()).toEqual([one]);
  expect(layerRow(db, getImage(db, alice, one)?.layerId as LayerId)?.baseKey).toBe(KEY);
});

test("a cancelled import changes nothing", () => {
  const first = publish({ tag: "a" });
  const operationId = addExecuting(db, { kind: "image_import" });
  requestCancel(db, alice, operationId, 2);
  const image = { ...someImage(getImage(db, alice, first)?.layerId as LayerId), digest: "sha256:1" };
  const publication = { result: { image: image.id }, image, tag: "z", reusesImage: true };
  expect(publishOperation(db, { operationId, now: 3, ...publication })).toBeNull();
  expect([all(), resolveImage(db, alice, { tag: "z" })]).toEqual([[first], null]);
});

test("a reused image counts as used", () => {
  const first = publish({ now: 1 });
  const isOld = (id: ImageId) =>
    db.orm
      .select({ id: images.id })
      .from(images)
      .where(isExpired(db.orm, 50))
      .all()
      .some((row) => row.id === id);
  db.orm.run(sql`update operations set created_at = 10`);
  expect(isOld(first)).toBe(true);
  publish({ now: 60 });
  db.orm.run(sql`update operations set created_at = 60 where image_id = ${first}`);
  expect(isOld(first)).toBe(false);
  expect(deleteExpiredImages(db.orm, [first], 50)).toEqual([]);
});

test("an image has the defaults of its import or run", () => {
  const layer = someLayer();
  const defaults = { variables: { PATH: "/bin", ["__proto__"]: "x" }, cwd: "/srv" };
  const image = { ...someImage(layer.id), defaults };
  publishOperation(db, { operationId: addExecuting(db), result: {}, now: 1, layer, image });
  expect(Object.entries(imageDefaults(db, image.id).variables)).toEqual(Object.entries(defaults.variables));
  expect(imageDefaults(db, image.id).cwd).toBe("/srv");
  expect(imageDefaults(db, newId<ImageId>())).toEqual({ variables: {}, cwd: null });
  expect(getImage(db, alice, image.id)).not.toHaveProperty("variables");
});
