import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, readdirSync, readlinkSync } from "node:fs";
import { descendants, lineage } from "../../../src/db/images/history.ts";
import { listImages, listImagesSync } from "../../../src/db/images/images.ts";
import { listOperations, listOperationsSync } from "../../../src/db/operation-listing.ts";
import { LARGE_OFFSET_MIN, Scans } from "../../../src/db/scans/scans.ts";
import { storeTotals } from "../../../src/db/totals.ts";
import type { ImageId } from "../../../src/domain/ids.ts";
import { alice, fillDatabase, type TestDatabase, testDatabase } from "../../support/database.ts";
import { throwing } from "../../support/failures.ts";
import { pause, until } from "../../support/waiting.ts";

const ROWS_COUNT = LARGE_OFFSET_MIN + 300;
const BY = { accountId: alice };
const FAR = { limit: 100, offset: LARGE_OFFSET_MIN + 100 };
/** A scan of about a second. */
const LONG =
  "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000000) SELECT count(*) AS c FROM n";

let store: TestDatabase;
/** A chain: each image is made from the one before. */
let steps: ImageId[];

beforeAll(() => {
  store = testDatabase();
  steps = fillDatabase(store.path, ROWS_COUNT, {
    statusOf: (at) => (at % 2 === 0 ? "FAILED" : "SUCCESS"),
    isTagged: (at) => at % 2 === 1,
    parentOf: (ids) => ids.at(-1),
  });
});
afterAll(() => store[Symbol.dispose]());

test("a page far down a listing is the same as on the event loop", async () => {
  const operations = await listOperations(store.db, alice, FAR);
  expect(operations.length).toBe(100);
  expect(operations).toEqual(listOperationsSync(store.db, alice, FAR));
  const bounds = { ...FAR, status: "FAILED", sinceMs: 5, untilMs: ROWS_COUNT } as const;
  expect(await listOperations(store.db, alice, bounds)).toEqual(listOperationsSync(store.db, alice, bounds));
  const some = { ...FAR, kinds: ["instance", "image_import"] } as const;
  expect(await listOperations(store.db, alice, some)).toEqual(operations);
  const images = await listImages(store.db, alice, FAR);
  expect(images.length).toBe(100);
  expect(images).toEqual(listImagesSync(store.db, alice, FAR));
  expect(await listImages(store.db, alice, { limit: 10, offset: ROWS_COUNT })).toEqual([]);
});

test("a page of tags with a common prefix is the same from every plan", async () => {
  const all = listImagesSync(store.db, alice, { limit: ROWS_COUNT, offset: 0, tagPrefix: "tag-" });
  expect(all.length).toBe(Math.ceil(ROWS_COUNT / 2));
  const page = (filter: object) => listImages(store.db, alice, { limit: 20, offset: 0, tagPrefix: "tag-", ...filter });
  expect(await page({})).toEqual(all.slice(0, 20));
  expect(await page({ tagged: true, offset: 1000 })).toEqual(all.slice(1000, 1020));
  expect(await page({ untilMs: 19 })).toEqual(all.slice(-10));
  expect(await page({ tagPrefix: "tag-10", offset: 10, limit: 5 })).toEqual(
    listImagesSync(store.db, alice, { limit: 5, offset: 10, tagPrefix: "tag-10" }),
  );
  expect(await page({ tagged: false })).toEqual([]);
  expect(await page({ tagged: false, tagPrefix: "" })).toEqual([]);
});

test("a long lineage is listed in pages, in both directions", async () => {
  const [base, top] = [steps[0] as ImageId, steps.at(-1) as ImageId];
  const ids = (rows: readonly { readonly imageId: ImageId }[]) => rows.map(({ imageId }) => imageId);
  expect(ids(await lineage(store.db, top, FAR, BY))).toEqual(
    steps.toReversed().slice(FAR.offset, FAR.offset + FAR.limit),
  );
  expect(ids(await lineage(store.db, top, { limit: 3, offset: 10 }, BY))).toEqual(steps.toReversed().slice(10, 13));
  const below = (page: object) => descendants(store.db, base, { limit: 3, offset: 0, recursive: true, ...page }, BY);
  expect(ids(await below({}))).toEqual(steps.slice(1, 4));
  expect(ids(await below(FAR))).toEqual(steps.slice(1).slice(FAR.offset, FAR.offset + FAR.limit));
  expect(ids(await below({ recursive: false }))).toEqual(steps.slice(1, 2));
});

test("sums are read in the thread", async () => {
  expect(await storeTotals(store.db)).toEqual({
    imageCount: ROWS_COUNT,
    layerCount: 1,
    layerBytes: 7,
    mergedLayerCount: 0,
    mergedLayerBytes: 0,
    fileCount: 0,
    fileBytes: 0,
  });
});

test("the event loop continues during a scan", async () => {
  let turns = 0;
  const timer = setInterval(() => turns++, 5);
  const rows = await store.db.scans.all({ sql: LONG, params: [] }, BY);
  clearInterval(timer);
  expect(rows).toEqual([[3_000_000]]);
  expect(turns).toBeGreaterThan(10);
});

test("a scan reports its error, and cannot write", async () => {
  expect(await throwing(store.db.scans.all({ sql: "SELECT x FROM images", params: [] }, BY))).toThrow("no such column");
  expect(await throwing(store.db.scans.all({ sql: "DELETE FROM images RETURNING id", params: [] }, BY))).toThrow(
    "readonly",
  );
  expect(await store.db.scans.all({ sql: "SELECT count(*) FROM images", params: [] }, BY)).toEqual([[ROWS_COUNT]]);
});

test("a thread that ends leaves no descriptor of the database", async () => {
  const open = () => descriptors().filter((path) => path.startsWith(store.path)).length;
  const lookAndEnd = async () => {
    const scans = new Scans(store.path);
    expect(await scans.all({ sql: "SELECT count(*) FROM images", params: [] }, BY)).toEqual([[ROWS_COUNT]]);
    const most = open();
    scans[Symbol.dispose]();
    await until("the thread has closed it", () => open() < most);
  };
  await lookAndEnd();
  const before = open();
  for (let round = 0; round < 4; round++) await lookAndEnd();
  // One is kept for the next connection: closing it would take the locks of the others with it.
  expect(open()).toBeLessThanOrEqual(before + 1);
});

test("closing the database ends running scans", async () => {
  using other = testDatabase();
  const reading = other.db.scans.all({ sql: LONG, params: [] }, BY);
  other.db[Symbol.dispose]();
  expect(await throwing(reading)).toThrow("the database was closed");
});

test("closing the database during a scan ends the thread after the scan, and not the process", async () => {
  using other = testDatabase();
  await other.db.scans.all({ sql: "SELECT 1", params: [] }, BY);
  const reading = other.db.scans.all({ sql: LONG, params: [] }, BY);
  // The thread executes the statement by now, and still would if it had begun late.
  await pause("the statement has begun", 20);
  other.db[Symbol.dispose]();
  expect(await throwing(reading)).toThrow("the database was closed");
  await until("the thread has closed it", () => !descriptors().some((path) => path.startsWith(other.path)));
});

/** Paths of the files that this process has open. */
function descriptors(): string[] {
  return readdirSync("/proc/self/fd").flatMap((fd) => {
    const path = `/proc/self/fd/${fd}`;
    try {
      return existsSync(path) ? [readlinkSync(path)] : [];
    } catch (error) {
      // The descriptor of the listing itself is closed by now, and the thread may close one of its own at any time.
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return [];
      throw error;
    }
  });
}
