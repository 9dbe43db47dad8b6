import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import Libsql from "libsql";
import { getFile } from "../../../src/db/files.ts";
import { getImage, listImages, resolveImage } from "../../../src/db/images.ts";
import { findBaseLayer, layerChain } from "../../../src/db/layers.ts";
import {
  deleteOperationsFinishedBefore,
  executingOperations,
  getOperation,
  listOperations,
  pendingOperations,
} from "../../../src/db/operations.ts";
import { getToken } from "../../../src/db/tokens.ts";
import type { ImageId, LayerId } from "../../../src/domain/ids.ts";
import { alice, newId, type TestDatabase, testDatabase } from "../../support/database.ts";

const PAGE = { limit: 100, offset: 0 };
const BOUNDS = { sinceMs: 10, untilMs: 1_000_000 };
const ROWS_COUNT = 2000;

let store: TestDatabase;
let reader: Libsql.Database;

beforeAll(() => {
  store = testDatabase();
  fill(store.path);
  reader = new Libsql(store.path);
});
afterAll(() => {
  reader.close();
  store[Symbol.dispose]();
});

/** Enough rows that a plan is chosen as it is for a million; statistics are not kept, so that it does not change. */
function fill(path: string): void {
  const db = new Libsql(path);
  db.transaction(() => {
    db.prepare("INSERT INTO accounts (id, created_at) VALUES ('alice', 1)").run();
    db.prepare(
      "INSERT INTO layers (id, format, size_bytes, disk_bytes, entry_count, created_at) VALUES ('layer', 'ext4', 1, 1, 1, 1)",
    ).run();
    const operation = db.prepare(
      "INSERT INTO operations (id, account_id, kind, status, created_at, finished_at) VALUES (?, 'alice', 'instance', 'SUCCESS', ?, ?)",
    );
    const image = db.prepare(
      "INSERT INTO images (id, account_id, layer_id, size_bytes, created_at) VALUES (?, 'alice', 'layer', 1, ?)",
    );
    for (let at = 1; at <= ROWS_COUNT; at++) {
      operation.run(newId(), at, at);
      image.run(newId(), at);
    }
  })();
  db.close();
}

/** The plans of all statements that `work` prepares, a line each. */
function plansOf(work: () => unknown): string[] {
  const texts: string[] = [];
  const prototype = Libsql.prototype as { prepare(sql: string): unknown };
  const prepare = prototype.prepare;
  prototype.prepare = function (this: unknown, sql: string) {
    texts.push(sql);
    return prepare.call(this, sql);
  };
  try {
    work();
  } finally {
    prototype.prepare = prepare;
  }
  expect(texts.length).toBeGreaterThan(0);
  return texts.flatMap((sql) => {
    const values = Array.from(sql.matchAll(/\?/g), () => 1);
    const rows = reader.prepare(`EXPLAIN QUERY PLAN ${sql}`).all(...values) as { detail: string }[];
    return rows.map(({ detail }) => detail);
  });
}

/** Rows that a scan may go through: pages and lists of values that were found before. */
const SMALL = /^SCAN (page|json_each|chain|above|below|walk|CONSTANT)/;

const scans = (plan: readonly string[]): string[] =>
  plan.filter((line) => line.startsWith("SCAN") && !SMALL.test(line) && !/VIRTUAL TABLE/.test(line));
const sorts = (plan: readonly string[]): string[] => plan.filter((line) => line.includes("TEMP B-TREE"));

describe("a page is found in a covering index", () => {
  const cases: Record<string, () => unknown> = {
    "of operations": () => listOperations(store.db, alice, PAGE),
    "of operations in a status": () => listOperations(store.db, alice, { ...PAGE, status: "FAILED" }),
    "of operations of a kind": () => listOperations(store.db, alice, { ...PAGE, kind: "instance" }),
    "of operations of both": () => listOperations(store.db, alice, { ...PAGE, status: "FAILED", kind: "instance" }),
    "of operations between two times": () => listOperations(store.db, alice, { ...PAGE, ...BOUNDS }),
    "of failed operations between two times": () =>
      listOperations(store.db, alice, { ...PAGE, ...BOUNDS, status: "FAILED" }),
    "of images": () => listImages(store.db, alice, PAGE),
    "of images with a tag": () => listImages(store.db, alice, { ...PAGE, tagged: true }),
    "of images without": () => listImages(store.db, alice, { ...PAGE, tagged: false }),
    "of images between two times": () => listImages(store.db, alice, { ...PAGE, ...BOUNDS }),
  };
  for (const [name, work] of Object.entries(cases)) {
    test(name, () => {
      const plan = plansOf(work);
      expect(scans(plan)).toEqual([]);
      expect(plan.some((line) => line.includes("USING COVERING INDEX"))).toBe(true);
      // The rows of one page may be put in order; those that are skipped may not.
      expect(plan.findIndex((line) => line.includes("TEMP B-TREE"))).not.toBe(0);
      expect(sorts(plan).length).toBeLessThanOrEqual(1);
    });
  }
});

describe("nothing reads a whole table", () => {
  const cases: Record<string, () => unknown> = {
    "to get an operation": () => getOperation(store.db, alice, newId()),
    "to get an image": () => getImage(store.db, alice, newId<ImageId>()),
    "to find a tag": () => resolveImage(store.db, alice, { tag: "x" }),
    "to list by the beginning of a tag": () => listImages(store.db, alice, { ...PAGE, tagPrefix: "a" }),
    "to find a file": () => getFile(store.db, alice, { sha256: "x" }),
    "to check a token": () => getToken(store.db, newId()),
    "to find what waits after a start": () => pendingOperations(store.db),
    "to find what was cut off": () => executingOperations(store.db),
    "to find a base": () => findBaseLayer(store.db, "key"),
    "to follow a chain": () => layerChain(store.db, newId<LayerId>()),
    "to forget old operations": () => deleteOperationsFinishedBefore(store.db, 0, 10),
  };
  for (const [name, work] of Object.entries(cases)) {
    test(name, () => expect(scans(plansOf(work))).toEqual([]));
  }
});
