import { describe, expect, test } from "bun:test";
import type { Database } from "../../../src/db/database.ts";
import { getImage, type ImageFilter, listImagesSync, resolveImage } from "../../../src/db/images/images.ts";
import { listImagesPerTag, type TagFilter } from "../../../src/db/images/tag-listing.ts";
import { moveTag, removeTags, setTag } from "../../../src/db/images/tags.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import { deleteImage } from "../../../src/db/removal.ts";
import type { ImageId } from "../../../src/domain/ids.ts";
import { TAGS_COUNT_MAX } from "../../../src/domain/image.ts";
import {
  addExecuting,
  alice,
  bob,
  databasePerTest,
  importImage,
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
const tagOf = (id: ImageId) => getImage(db, alice, id)?.tag;

const add = (id: ImageId, name: string, now: number) => setTag(db, alice, id, { name, change: "added", now });

describe("a tag", () => {
  test("moves to another image, and an image shows only its latest", () => {
    const [one, two] = [addImage({ tag: "a" }), addImage()];
    expect(setTag(db, alice, two, { name: "a", change: "replaced", now: 1 })).toMatchObject({
      id: two,
      tag: "a",
      tagged: true,
    });
    expect(getImage(db, alice, one)).toMatchObject({ tag: null, tagged: false });
    expect(setTag(db, alice, two, { name: "b", change: "replaced", now: 1 })?.tag).toBe("b");
    expect(resolveImage(db, alice, { tag: "a" })).toBeNull();
    expect(resolveImage(db, alice, { tag: "b" })?.id).toBe(two);
    expect(setTag(db, alice, two, { name: "b", change: "replaced", now: 1 })).toMatchObject({ tag: "b", tagged: true });
    setTag(db, alice, one, { name: "x", change: "replaced", now: 1 });
    expect(setTag(db, alice, two, { name: "x", change: "replaced", now: 1 })?.tag).toBe("x");
    expect([tagOf(one), tagOf(two)]).toEqual([null, "x"]);
    expect(list({ tagged: true })).toEqual([two]);
  });

  test("is one of several when it is added, and the image shows the last one that was set", () => {
    const [one, two] = [addImage({ tag: "a", now: 1 }), addImage()];
    expect(add(one, "b", 2)).toMatchObject({ id: one, tag: "b", tagged: true });
    expect(add(one, "c", 2)?.tag).toBe("c");
    for (const tag of ["a", "b", "c"]) expect(resolveImage(db, alice, { tag })).toMatchObject({ id: one, tag: "c" });
    // A tag that it has already is the latest then.
    expect(add(one, "a", 3)?.tag).toBe("a");
    // The one that it shows moves away: the next latest is shown. Two were set in the same millisecond.
    expect(add(two, "a", 4)?.tag).toBe("a");
    expect(tagOf(one)).toBe("c");
    expect(add(two, "b", 4)?.tag).toBe("b");
    expect([tagOf(one), tagOf(two)]).toEqual(["c", "b"]);
    // Only the shown one is replaced.
    expect(setTag(db, alice, two, { name: "d", change: "replaced", now: 5 })?.tag).toBe("d");
    expect(resolveImage(db, alice, { tag: "b" })).toBeNull();
    expect(resolveImage(db, alice, { tag: "a" })?.id).toBe(two);
    // One of its own that it does not show.
    expect(setTag(db, alice, two, { name: "a", change: "replaced", now: 6 })?.tag).toBe("a");
    expect(resolveImage(db, alice, { tag: "d" })).toBeNull();
    expect(setTag(db, alice, two, { name: "c", change: "replaced", now: 7 })?.tag).toBe("c");
    expect(getImage(db, alice, one)).toMatchObject({ tag: null, tagged: false });
    expect(list({ tagged: true })).toEqual([two]);
  });

  test("is removed alone, or with the others", () => {
    const [id, other] = [addImage(), addImage({ tag: "x" })];
    for (const [index, tag] of ["a", "b", "c"].entries()) add(id, tag, index);
    expect(removeTags(db, alice, id, "a")?.tag).toBe("c");
    expect(removeTags(db, alice, id, "c")?.tag).toBe("b");
    for (const foreign of ["x", "unknown", "c"]) expect(removeTags(db, alice, id, foreign)?.tag).toBe("b");
    expect(tagOf(other)).toBe("x");
    add(id, "d", 9);
    expect(removeTags(db, alice, id)).toMatchObject({ id, tag: null, tagged: false });
    expect(resolveImage(db, alice, { tag: "b" })).toBeNull();
    expect(removeTags(db, alice, other, "x")).toMatchObject({ tag: null, tagged: false });
  });

  test("goes with its image", () => {
    const id = addImage({ tag: "a" });
    add(id, "b", 2);
    expect(deleteImage(db, alice, id)).toHaveProperty("deleted");
    const next = addImage({ tag: "b" });
    add(next, "a", 3);
    expect([tagOf(next), resolveImage(db, alice, { tag: "b" })?.id]).toEqual(["a", next]);
  });

  test("is refused when the image has as many as it may have, and nothing moves", () => {
    const [id, other] = [addImage(), addImage({ tag: "other" })];
    db.transaction((tx) => {
      for (let n = 0; n < TAGS_COUNT_MAX; n++) moveTag(tx, alice, id, { name: `t${n}`, change: "added", now: n });
    });
    expect(() => add(id, "other", 2000)).toThrow("1000 tags");
    expect(tagOf(other)).toBe("other");
    // One that it has, and one in the place of another, need no room.
    expect(add(id, "t5", 2001)?.tag).toBe("t5");
    expect(setTag(db, alice, id, { name: "other", change: "replaced", now: 2002 })?.tag).toBe("other");
    expect(add(id, "t6", 2003)?.tag).toBe("t6");
  });

  test("moves with an import", () => {
    const one = addImage({ tag: "latest" });
    const two = addImage({ tag: "latest" });
    expect([tagOf(one), tagOf(two)]).toEqual([null, "latest"]);
  });

  test("is removed, once or twice", () => {
    const id = addImage({ tag: "a" });
    expect(removeTags(db, alice, id)).toMatchObject({ id, tag: null, tagged: false });
    expect(removeTags(db, alice, id)).toMatchObject({ id, tag: null });
    expect(resolveImage(db, alice, { tag: "a" })).toBeNull();
  });

  test("belongs to one account", () => {
    const mine = addImage({ tag: "a" });
    const theirs = addImage({ tag: "a", accountId: bob });
    expect(resolveImage(db, alice, { tag: "a" })?.id).toBe(mine);
    expect(resolveImage(db, bob, { tag: "a" })?.id).toBe(theirs);
    expect(setTag(db, alice, theirs, { name: "b", change: "replaced", now: 1 })).toBeNull();
    expect(add(theirs, "b", 2)).toBeNull();
    expect(removeTags(db, alice, theirs)).toBeNull();
    expect(removeTags(db, alice, theirs, "a")).toBeNull();
    expect(getImage(db, alice, theirs)).toBeNull();
    expect(resolveImage(db, alice, { uuid: theirs })).toBeNull();
    expect(resolveImage(db, bob, { uuid: theirs })?.tag).toBe("a");
    expect(setTag(db, alice, newId<ImageId>(), { name: "b", change: "replaced", now: 1 })).toBeNull();
  });
});

describe("a listing of tags", () => {
  const rows = async (filter: Partial<TagFilter> = {}) =>
    (await listImagesPerTag(db, alice, { limit: 100, offset: 0, ...filter })).map(({ id, tag }) => [id, tag]);
  const someTags = () => {
    const [one, two, three] = [1, 2, 3].map((now) => addImage({ now })) as [ImageId, ImageId, ImageId];
    for (const [tag, now] of [
      ["app", 10],
      ["app-1", 10],
      ["b", 11],
    ] as const)
      add(one, tag, now);
    add(three, "app-2", 12);
    addImage({ accountId: bob, tag: "app-3" });
    return { one, two, three };
  };

  test("has a row for each tag, and one for an image without", async () => {
    const { one, two, three } = someTags();
    const all = [
      [three, "app-2"],
      [two, null],
      [one, "b"],
      [one, "app-1"],
      [one, "app"],
    ];
    expect(await rows()).toEqual(all);
    expect(await rows({ limit: 2, offset: 1 })).toEqual(all.slice(1, 3));
    expect(await rows({ offset: 5 })).toEqual([]);
    expect(await rows({ tagged: true })).toEqual(all.filter(([, tag]) => tag !== null));
    expect(await rows({ tagged: false })).toEqual([[two, null]]);
    expect(await rows({ tagPrefix: "" })).toEqual(all.filter(([, tag]) => tag !== null));
    expect(await rows({ id: one })).toEqual(all.slice(2));
    expect(await rows({ id: one, tagPrefix: "app" })).toEqual([
      [one, "app"],
      [one, "app-1"],
    ]);
    expect(await rows({ sinceMs: 2, untilMs: 2 })).toEqual([[two, null]]);
  });

  test("begins with the tag that equals the prefix", async () => {
    const { one, three } = someTags();
    const all = [
      [one, "app"],
      [three, "app-2"],
      [one, "app-1"],
    ];
    expect(await rows({ tagPrefix: "app" })).toEqual(all);
    for (let offset = 0; offset <= 3; offset++) {
      for (const limit of [1, 2, 3]) {
        expect(await rows({ tagPrefix: "app", offset, limit })).toEqual(all.slice(offset, offset + limit));
      }
    }
    expect(await rows({ tagPrefix: "app-" })).toEqual(all.slice(1));
    expect(await rows({ tagPrefix: "app", sinceMs: 2 })).toEqual([[three, "app-2"]]);
    expect(await rows({ tagPrefix: "app", tagged: false })).toEqual([]);
    expect(await rows({ tagPrefix: "nothing" })).toEqual([]);
  });

  test("tells imports from runs, also when the parent of a run is gone", async () => {
    const layer = someLayer();
    const base = { ...someImage(layer.id), digest: "sha256:1" };
    publishOperation(db, { operationId: addExecuting(db), result: {}, now: 1, layer, image: base, tag: "base" });
    const run = { ...someImage(layer.id), parentId: base.id };
    publishOperation(db, { operationId: addExecuting(db), result: {}, now: 2, image: run });
    expect(await rows({ origin: "run" })).toEqual([[run.id, null]]);
    expect(await rows({ origin: "import" })).toEqual([[base.id, "base"]]);
    deleteImage(db, alice, base.id);
    expect(await rows({ origin: "import" })).toEqual([]);
    expect(await rows({ origin: "run" })).toEqual([[run.id, null]]);
  });
});
