import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import Libsql from "libsql";
import { branchImagesFrom, branchImagesOf, placeBefore, walkUp } from "../../../src/db/branches/branch-images.ts";
import { branchOperations } from "../../../src/db/branches/branch-operations.ts";
import { openDatabase } from "../../../src/db/database.ts";
import { expiredImages, unreferencedLayers } from "../../../src/db/expiry.ts";
import { deleteFilesUnusedSince, getFile, listFiles } from "../../../src/db/files.ts";
import { descendants, lineage } from "../../../src/db/images/history.ts";
import { getImage, listImages, listImagesSync, resolveImage } from "../../../src/db/images/images.ts";
import { findBaseLayer, findProvenBase, layerChain } from "../../../src/db/images/layers.ts";
import { mergedLayersWithTop } from "../../../src/db/images/merged-layers.ts";
import { listImagesPerTag } from "../../../src/db/images/tag-listing.ts";
import { listOperations } from "../../../src/db/operation-listing.ts";
import {
  deleteOperationsFinishedBefore,
  executingOperations,
  getOperation,
  pendingOperations,
} from "../../../src/db/operations.ts";
import { deleteExpiredImages, deleteUnreferencedLayers } from "../../../src/db/removal.ts";
import { LARGE_OFFSET_MIN } from "../../../src/db/scans/scans.ts";
import { countTokens, forgetEndedTokens, getToken } from "../../../src/db/tokens.ts";
import { liveWork } from "../../../src/db/totals.ts";
import type { ImageId, LayerId } from "../../../src/domain/ids.ts";
import { alice, fillDatabase, newId, type TestDatabase, testDatabase } from "../../support/database.ts";

const BY = { accountId: alice };
const PAGE = { limit: 100, offset: 0 };
/** Enough rows for the plans of a million; without statistics they do not change. */
const ROWS_COUNT = 2000;

let store: TestDatabase;
let reader: Libsql.Database;
/** The image that all others were made from. */
let base: ImageId;

beforeAll(() => {
  store = testDatabase();
  [base] = fillDatabase(store.path, ROWS_COUNT, { parentOf: ([first]) => first }) as [ImageId];
  reader = new Libsql(store.path);
});
afterAll(() => {
  reader.close();
  store[Symbol.dispose]();
});

// A connection prepares each statement once.
beforeEach(() => {
  store = { ...store, db: openDatabase(store.path) };
});
afterEach(() => store.db[Symbol.dispose]());

/** The statements that `work` sends to the database, on the event loop and in the thread. */
async function statementsOf(work: () => unknown): Promise<{ readonly here: string[]; readonly inThread: string[] }> {
  const [here, inThread]: string[][] = [[], []];
  const prototype = Libsql.prototype as { prepare(sql: string): unknown };
  const prepare = prototype.prepare;
  const { all, upkeep } = store.db.scans;
  prototype.prepare = function (this: unknown, sql: string) {
    here?.push(sql);
    return prepare.call(this, sql);
  };
  store.db.scans.all = function (this: typeof store.db.scans, query, asker) {
    inThread?.push(query.sql);
    return all.call(this, query, asker);
  };
  store.db.scans.upkeep = function (this: typeof store.db.scans, query) {
    inThread?.push(query.sql);
    return upkeep.call(this, query);
  };
  try {
    await work();
  } finally {
    prototype.prepare = prepare;
    Object.assign(store.db.scans, { all, upkeep });
  }
  return { here: here ?? [], inThread: inThread ?? [] };
}

/** The plans of these statements, one a line. */
async function plansOf(work: () => unknown): Promise<string[]> {
  const { here, inThread } = await statementsOf(work);
  expect(here.length + inThread.length).toBeGreaterThan(0);
  return [...here, ...inThread].flatMap((sql) => {
    const values = Array.from(sql.matchAll(/\?/g), () => 1);
    const rows = reader.prepare(`EXPLAIN QUERY PLAN ${sql}`).all(...values) as { detail: string }[];
    return rows.map(({ detail }) => detail);
  });
}

/** Tables that a scan may read whole: pages, and lists of values. */
const SMALL = /^SCAN (page|json_each|chain|above|below|walk|up|gone|CONSTANT)/;

const scans = (plan: readonly string[]): string[] =>
  plan.filter((line) => line.startsWith("SCAN") && !SMALL.test(line) && !/VIRTUAL TABLE/.test(line));
const sorts = (plan: readonly string[]): string[] => plan.filter((line) => line.includes("TEMP B-TREE"));

/** All combinations of these filters, each present or absent. */
function combinations(choices: Readonly<Record<string, readonly object[]>>): [string, object][] {
  return Object.entries(choices).reduce<[string, object][]>(
    (combined, [name, values]) =>
      combined.flatMap(([text, filter]) => [
        [text, filter] as [string, object],
        ...values.map((value): [string, object] => [
          `${text} ${name} ${Object.values(value)}`,
          { ...filter, ...value },
        ]),
      ]),
    [["all", {}]],
  );
}

test("branches are read in the order of their index", async () => {
  const from = { createdAt: 5, id: base };
  const plan = await plansOf(() => branchImagesFrom(store.db, alice, from, from, 100));
  expect(sorts(plan)).toEqual([]);
  expect(plan[0]).toContain("images_by_time (account_id=? AND (created_at,id)>(?,?) AND (created_at,id)<(?,?))");
});

describe("a page is found in a covering index", () => {
  const bounds = { since: [{ sinceMs: 10 }], until: [{ untilMs: 1_000_000 }] };
  const kinds = [{ kind: "instance" }, { kinds: ["instance", "image_import"] }];
  const operations = combinations({ status: [{ status: "FAILED" }], kind: kinds, ...bounds });
  const images = combinations({
    tagged: [{ tagged: true }, { tagged: false }],
    ...bounds,
    prefix: [{ tagPrefix: "" }],
  });
  const children = { ...PAGE, recursive: false };
  const cases: [string, () => unknown][] = [
    ...operations.map(([name, filter]): [string, () => unknown] => [
      `of operations: ${name}`,
      () => listOperations(store.db, alice, { ...PAGE, ...filter }),
    ]),
    ...images
      .filter(([, filter]) => !("tagPrefix" in filter && "tagged" in filter && filter.tagged === false))
      .map(([name, filter]): [string, () => unknown] => [
        `of images: ${name}`,
        () => listImages(store.db, alice, { ...PAGE, ...filter }),
      ]),
    ...combinations(bounds).map(([name, filter]): [string, () => unknown] => [
      `of files: ${name}`,
      () => listFiles(store.db, alice, { ...PAGE, ...filter }),
    ]),
    ["of children of an image", () => descendants(store.db, base, children, BY)],
  ];
  test.each(cases)("%s", async (_, work) => {
    const plan = await plansOf(work);
    expect(scans(plan)).toEqual([]);
    expect(plan.some((line) => line.includes("USING COVERING INDEX"))).toBe(true);
    // The rows of one page may be sorted; skipped rows may not.
    expect(plan.findIndex((line) => line.includes("TEMP B-TREE"))).not.toBe(0);
    expect(sorts(plan).length).toBeLessThanOrEqual(1);
  });
});

test("images to be deleted are found by their ids, not by a scan of old ones", async () => {
  const plan = await plansOf(() => deleteExpiredImages(store.db.orm, [newId<ImageId>()], 0));
  expect(plan.filter((line) => line.includes("images_untagged"))).toEqual([]);
});

test("an image in use is found without reading all its operations", async () => {
  const plan = await plansOf(() => deleteExpiredImages(store.db.orm, [newId<ImageId>()], 0));
  const uses = plan.filter((line) => line.includes("operations"));
  expect(uses).toHaveLength(2);
  for (const use of uses) expect(use).toMatch(/operations_image \(image_id=\? AND finished_at/);
});

describe("queries that grow with the store run in the thread", () => {
  const far = { limit: 10, offset: LARGE_OFFSET_MIN };
  const cases: Record<string, () => unknown> = {
    "operations that are far behind": () => listOperations(store.db, alice, far),
    "images that are far behind": () => listImages(store.db, alice, far),
    "images with a tag that begins as many do": () => listImages(store.db, alice, { ...PAGE, tagPrefix: "tag-" }),
    "the origin of an image that is far behind": () => lineage(store.db, base, far, BY),
    "children that are far behind": () => descendants(store.db, base, { ...far, recursive: false }, BY),
    "images without a use": () => expiredImages(store.db, 0, 10),
    "layers that nothing stands on": () => unreferencedLayers(store.db, 10),
    "what was made of an image, when it is much": () => descendants(store.db, base, { ...PAGE, recursive: true }, BY),
  };
  test.each(Object.entries(cases))("%s", async (_, work) => {
    expect((await statementsOf(work)).inThread).toHaveLength(1);
  });

  test("also a listing by the prefix of many tags", async () => {
    const plan = await plansOf(() => listImages(store.db, alice, { ...PAGE, tagPrefix: "tag-" }));
    expect(scans(plan)).toEqual([]);
    // Only the page is sorted.
    expect(sorts(plan)).toHaveLength(1);
  });

  test.each([
    ["far behind", far],
    ["by the prefix of many", { ...PAGE, tagPrefix: "tag-" }],
    ["by their origin", { ...PAGE, origin: "import" as const }],
  ])("tags of images %s", async (_, filter) => {
    const list = () => listImagesPerTag(store.db, alice, filter);
    expect((await statementsOf(list)).inThread).toHaveLength(1);
    const plan = await plansOf(list);
    expect(scans(plan)).toEqual([]);
    // Images are found in their order: only the tags of one image are sorted at a time.
    expect(sorts(plan).filter((line) => !line.includes("RIGHT PART OF ORDER BY"))).toEqual([]);
  });

  test("small queries run on the event loop", async () => {
    const narrow = await statementsOf(() => listImages(store.db, alice, { ...PAGE, tagPrefix: "tag-12" }));
    expect(narrow.inThread).toEqual([]);
    expect((await statementsOf(() => lineage(store.db, base, PAGE, BY))).inThread).toEqual([]);
    const tags = await statementsOf(() => listImagesPerTag(store.db, alice, { ...PAGE, tagPrefix: "tag-12" }));
    expect(tags.inThread).toEqual([]);
  });
});

describe("no query reads a whole table", () => {
  const cases: Record<string, () => unknown> = {
    "to get an operation": () => getOperation(store.db, alice, newId()),
    "to get an image": () => getImage(store.db, alice, newId<ImageId>()),
    "to find a tag": () => resolveImage(store.db, alice, { tag: "x" }),
    "to list by the beginning of a tag": () => listImagesSync(store.db, alice, { ...PAGE, tagPrefix: "a" }),
    "to list tags": () => listImagesPerTag(store.db, alice, PAGE),
    "to list the images that have tags": () => listImagesPerTag(store.db, alice, { ...PAGE, tagged: true }),
    "to list tags by their beginning": () => listImagesPerTag(store.db, alice, { ...PAGE, tagPrefix: "tag-12" }),
    "to list the tags of an image": () => listImagesPerTag(store.db, alice, { ...PAGE, id: base }),
    "to read branches": () => branchImagesFrom(store.db, alice, { createdAt: 5, id: base }, null, 100),
    "to find where a part of them begins": () => placeBefore(store.db, alice, { createdAt: 5, id: base }, 1000),
    "to read those that have changed": () => branchImagesOf(store.db, alice, [base]),
    "to walk past deleted ones": () => walkUp(store.db, base, 200),
    "to find the operations of branches": () => branchOperations(store.db, alice, "PENDING", null, 32),
    "to find a file": () => getFile(store.db, alice, { sha256: "x" }),
    "to check a token": () => getToken(store.db, newId()),
    "to count the ended tokens of an account": () =>
      countTokens(store.db, { accountId: alice, state: "expired", now: 1 }),
    "to forget them": () => forgetEndedTokens(store.db, alice, 1, 1),
    "to count live work by account": () => liveWork(store.db),
    "to find what waits after a start": () => pendingOperations(store.db),
    "to find what was cut off": () => executingOperations(store.db),
    "to find a base": () => findBaseLayer(store.db, "key"),
    "to find a base that is proved": () => findProvenBase(store.db, alice, "key"),
    "to follow a chain": () => layerChain(store.db, newId<LayerId>()),
    "to follow a lineage": () => lineage(store.db, base, PAGE, BY),
    "to find what was made of an image": () => descendants(store.db, base, { ...PAGE, recursive: true }, BY),
    "to find images without a use": () => expiredImages(store.db, 0, 10),
    "to delete them": () => deleteExpiredImages(store.db.orm, [newId<ImageId>()], 0),
    "to delete layers": () => deleteUnreferencedLayers(store.db.orm, ["layer" as LayerId], () => true),
    "to find files without a use": () => deleteFilesUnusedSince(store.db.orm, 0, 10),
    "to find merged layers of a chain": () => mergedLayersWithTop(store.db, alice, [newId<LayerId>()]),
    "to forget old operations": () => deleteOperationsFinishedBefore(store.db, 0, 10),
  };
  for (const [name, work] of Object.entries(cases)) {
    test(name, async () => expect(scans(await plansOf(work))).toEqual([]));
  }
});
