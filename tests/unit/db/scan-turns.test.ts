import { afterEach, beforeEach, expect, spyOn, test } from "bun:test";
import { previewDeletion } from "../../../src/db/branches/deletion.ts";
import { listFiles } from "../../../src/db/files.ts";
import { descendants, lineage } from "../../../src/db/images/history.ts";
import { listImages } from "../../../src/db/images/images.ts";
import { listImagesPerTag } from "../../../src/db/images/tag-listing.ts";
import { listOperations } from "../../../src/db/operation-listing.ts";
import { ScanThread } from "../../../src/db/scans/scan-thread.ts";
import { LARGE_OFFSET_MIN } from "../../../src/db/scans/scans.ts";
import { ACCOUNT_LIMITS } from "../../../src/domain/account/limits.ts";
import { ApiError } from "../../../src/domain/errors.ts";
import type { AccountId, LayerId } from "../../../src/domain/ids.ts";
import { alice, bob, importImage, newId, type TestDatabase, testDatabase } from "../../support/database.ts";

const { max: COUNT_MAX, total: TOTAL, reserved: RESERVED, spare: SPARE } = ACCOUNT_LIMITS.waitingQueries;

const QUERY = { sql: "SELECT 1", params: [] };
/** A query of about a tenth of a second. */
const LONG = {
  sql: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) AS c FROM n",
  params: [],
};

let store: TestDatabase;
/** Names of the queries, in the order in which they were answered. */
let answered: string[];
/** Queries that reached a thread. */
let posted: ReturnType<typeof spyOn<ScanThread, "all">>;
beforeEach(() => {
  store = testDatabase();
  answered = [];
  posted = spyOn(ScanThread.prototype, "all");
});
afterEach(() => {
  posted.mockRestore();
  store[Symbol.dispose]();
});

/** Runs a query, and returns its error; null when it was answered. */
async function ask(name: string, asking: Promise<unknown>): Promise<unknown> {
  try {
    await asking;
    answered.push(name);
    return null;
  } catch (error) {
    return error;
  }
}
const codeOf = (error: unknown) => (error instanceof ApiError ? error.code : error);
const of = (accountId: AccountId, signal?: AbortSignal) =>
  ask(accountId, store.db.scans.all(QUERY, { accountId, signal }));
const several = (count: number, accountId: AccountId) => Array.from({ length: count }, () => of(accountId));

test("the queries of one account do not come before the one of another", async () => {
  await Promise.all([...several(40, alice), of(bob)]);
  expect(answered).toHaveLength(41);
  expect(answered.indexOf(bob)).toBeLessThan(3);
});

test("a query without others before it is sent at once", () => {
  void of(alice);
  expect(posted).toHaveBeenCalledTimes(1);
});

test("too many queries of one account are refused, and no other account is", async () => {
  const asked = several(COUNT_MAX + 3, alice);
  const other = of(bob);
  const errors = (await Promise.all(asked)).map(codeOf);
  expect(errors.filter((code) => code === null)).toHaveLength(COUNT_MAX + 1);
  expect(errors.slice(-2)).toEqual(["too_many_requests", "too_many_requests"]);
  expect(await other).toBeNull();
});

test("a few accounts cannot take all places together", async () => {
  const count = Math.ceil(TOTAL / COUNT_MAX) + 4;
  const accounts = Array.from({ length: count }, (_, n) => `a${n}` as AccountId);
  const running = of(bob);
  const asked = accounts.map((account) => Promise.all(several(COUNT_MAX, account)));
  const late = of(alice);
  const answers = (await Promise.all(asked)).map((errors) => errors.filter((error) => error === null).length);
  expect(Math.min(...answers)).toBeGreaterThan(0);
  expect(answers.reduce((sum, each) => sum + each, 0)).toBeLessThanOrEqual(TOTAL - RESERVED - SPARE + count);
  expect([await running, await late]).toEqual([null, null]);
  expect(answered.indexOf(alice)).toBeLessThanOrEqual(accounts.length + 1);
});

test("a query whose client has left is dropped", async () => {
  const left = new AbortController();
  const running = of(alice);
  const dropped = [of(alice, left.signal), of(bob, left.signal)];
  const last = of(alice);
  left.abort("left");
  expect(await of(bob, left.signal)).toBe("left");
  expect(await Promise.all(dropped)).toEqual(["left", "left"]);
  expect([await running, await last]).toEqual([null, null]);
  expect(posted).toHaveBeenCalledTimes(2);
});

test("a listing whose client has left is dropped", async () => {
  const { db } = store;
  const signal = AbortSignal.abort("left");
  const far = { limit: 1, offset: LARGE_OFFSET_MIN, signal };
  const by = { accountId: alice, signal };
  const id = importImage(db);
  const listings = [
    listOperations(db, alice, far),
    listImages(db, alice, far),
    listImagesPerTag(db, alice, far),
    listFiles(db, alice, far),
    lineage(db, id, far, by),
    descendants(db, id, { ...far, recursive: true }, by),
    previewDeletion(db, { id, accountId: alice, layerId: newId<LayerId>() }, signal),
  ];
  for (const listing of listings) expect(await ask("listing", listing)).toBe("left");
  expect(posted).not.toHaveBeenCalled();
});

test("the service's own queries do not wait for those of callers, nor these for them", async () => {
  const { scans } = store.db;
  await Promise.all([scans.all(QUERY, { accountId: alice }), scans.upkeep(QUERY)]);
  const long = [ask("long", scans.all(LONG, { accountId: alice })), ...several(10, alice)];
  await ask("own", scans.upkeep(QUERY));
  expect(answered).toEqual(["own"]);
  await Promise.all(long);
  const own = ask("own long", scans.upkeep(LONG));
  await of(bob);
  expect(answered.at(-1)).toBe(bob);
  await own;
});

test("a query that must be alone waits for the running one, and takes a turn", async () => {
  const { scans } = store.db;
  const callers = several(5, alice);
  const alone = ask("alone", scans.alone(LONG));
  await Promise.all([...callers, alone]);
  expect(answered).toEqual([alice, alice, "alone", alice, alice, alice]);
});

test("closing the database ends the queries that wait", async () => {
  const asked = several(3, alice);
  store.db[Symbol.dispose]();
  expect((await Promise.all(asked)).map(String)).toEqual(Array(3).fill("ClosedError: the database was closed"));
  expect(String(await of(alice))).toContain("closed");
});
