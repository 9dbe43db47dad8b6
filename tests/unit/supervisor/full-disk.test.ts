import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sql } from "drizzle-orm";
import { type Database, openDatabase } from "../../../src/db/database.ts";
import { listOperationsSync } from "../../../src/db/operation-listing.ts";
import { getOperation } from "../../../src/db/operations.ts";
import { accounts } from "../../../src/db/schema.ts";
import { ApiError, storageFull } from "../../../src/domain/errors.ts";
import type { AccountId, OperationId } from "../../../src/domain/ids.ts";
import { requireSpace, withSpaceChecks } from "../../../src/storage/free-space.ts";
import { type DataLayout, dataLayout } from "../../../src/storage/layout.ts";
import { importKind } from "../../../src/supervisor/kinds/image-import.ts";
import type { Operations } from "../../../src/supervisor/operations/operations.ts";
import type { OperationsOptions } from "../../../src/supervisor/operations/options.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { Merging } from "../../support/images/merging.ts";
import { type Preparation, testOperations } from "../../support/operations.ts";
import { turns, until } from "../../support/waiting.ts";

const ACCOUNT = "alice" as AccountId;
const IMPORT = {
  source: { kind: "registry", reference: "registry.example.net/a:1" },
  credentials: null,
  tag: null,
  timeoutSeconds: 60,
  reuse: false,
  keepTags: false,
} as const;

let directory: string;
let db: Database;
let layout: DataLayout;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-full-disk-"));
  db = openDatabase(join(directory, "db"));
  layout = dataLayout(join(directory, "data"));
  await layout.ensure();
  db.orm.insert(accounts).values({ id: ACCOUNT, createdAt: 1 }).run();
});
afterEach(async () => {
  db[Symbol.dispose]();
  await rm(directory, { recursive: true });
});

const operationsOf = (prepare: Preparation, more: Partial<OperationsOptions> = {}) =>
  testOperations({ db, layout }, () => prepare, more);

const noSpace = () => Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC" });
const ended = async (operations: Operations, id: OperationId) => {
  await operations.waitForEnd(id, 10_000, new AbortController().signal);
  return getOperation(db, ACCOUNT, id);
};

test.each([
  ["ENOSPC", noSpace()],
  ["EDQUOT", Object.assign(new Error("quota"), { code: "EDQUOT" })],
  ["a full database", Object.assign(new Error("database or disk is full"), { code: "SQLITE_FULL" })],
  ["a cause", new Error("outer", { cause: new Error("inner", { cause: noSpace() }) })],
])("%s is a full disk", (_name, error) => {
  expect(storageFull(error)).toMatchObject({ code: "insufficient_storage", cause: error });
});

test.each([
  ["another error", new Error("x")],
  ["EIO", Object.assign(new Error("x"), { code: "EIO" })],
  ["text", "ENOSPC"],
])("%s is none", (_name, error) => expect(storageFull(error)).toBeNull());

test("an operation that runs out of disk space ends FAILED with insufficient_storage", async () => {
  const operations = operationsOf(() => Promise.reject(noSpace()));
  const { id } = await operations.submit(ACCOUNT, importKind, IMPORT);
  expect(await ended(operations, id)).toMatchObject({ status: "FAILED", error: { error: "insufficient_storage" } });
});

test("below the reserve no operation is accepted, and one that waited fails before it begins", async () => {
  let isLow = false;
  const requireRoom = () => {
    if (isLow) throw new ApiError("insufficient_storage", "the disk of the service is nearly full");
  };
  const gate = Promise.withResolvers<void>();
  let begun = 0;
  const run = async () => {
    begun++;
    await gate.promise;
    throw new Error("over");
  };
  const operations = operationsOf(run, { requireSpace: requireRoom });
  const first = await operations.submit(ACCOUNT, importKind, IMPORT);
  const second = await operations.submit(ACCOUNT, importKind, IMPORT);
  await until("the first has begun", () => begun === 1);
  isLow = true;
  expect(await throwing(operations.submit(ACCOUNT, importKind, IMPORT))).toThrow("nearly full");
  expect(listOperationsSync(db, ACCOUNT, { limit: 10, offset: 0 })).toHaveLength(2);
  gate.resolve();
  await ended(operations, first.id);
  expect(await ended(operations, second.id)).toMatchObject({ error: { error: "insufficient_storage" } });
  expect(begun).toBe(1);
});

test("an end that the database cannot record is recorded later", async () => {
  // As on a full disk, only the statement that ends it fails.
  const fail =
    "CREATE TRIGGER full BEFORE UPDATE ON operations WHEN NEW.status = 'FAILED' BEGIN SELECT RAISE(FAIL, 'full'); END";
  const ending = Promise.withResolvers<void>();
  const operations = operationsOf(async () => {
    db.orm.run(fail);
    ending.resolve();
    throw noSpace();
  });
  const { id } = await operations.submit(ACCOUNT, importKind, IMPORT);
  await ending.promise;
  await turns();
  expect(getOperation(db, ACCOUNT, id)?.status).toBe("EXECUTING");
  db.orm.run("DROP TRIGGER full");
  expect(await ended(operations, id)).toMatchObject({ status: "FAILED", error: { error: "insufficient_storage" } });
});

test("free space is checked before and while a stream is stored", async () => {
  expect(() => requireSpace(directory, 1)).not.toThrow();
  expect(() => requireSpace(directory, Number.MAX_SAFE_INTEGER)).toThrow("nearly full");
  async function* chunks() {
    yield new Uint8Array(1);
    yield new Uint8Array(2);
  }
  const seen: number[] = [];
  for await (const { length } of withSpaceChecks(chunks(), directory, 1)) seen.push(length);
  expect(seen).toEqual([1, 2]);
  const refused = withSpaceChecks(chunks(), directory, Number.MAX_SAFE_INTEGER).next();
  expect(await failureOf(refused)).toMatchObject({ code: "insufficient_storage" });
});

test("a run that cannot record the layers it uses does not hold them", async () => {
  await using merging = await Merging.start();
  const top = merging.chain(3);
  await merging.use(top);
  merging.now += 2000;
  await until("a merge has begun", () => merging.merges.length === 1);
  merging.merges[0]?.finish();
  await until("it is published", () => merging.rows().length === 1);
  merging.now += 120_000;
  merging.db.orm.run(sql`pragma query_only = on`);
  expect(await throwing(merging.use(top))).toThrow("readonly");
  merging.db.orm.run(sql`pragma query_only = off`);
  expect(merging.rows().filter(({ id }) => merging.layers.isHeld(id))).toEqual([]);
});
