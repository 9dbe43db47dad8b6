import { afterEach, beforeEach } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { eq } from "drizzle-orm";
import Libsql from "libsql";
import { type Database, openDatabase } from "../../src/db/database.ts";
import type { LayerRow } from "../../src/db/images/layers.ts";
import { MIGRATIONS } from "../../src/db/migrations.ts";
import { insertOperation, type NewOperation, startOperation } from "../../src/db/operations.ts";
import { type NewLayer, publishOperation } from "../../src/db/publish.ts";
import { layers } from "../../src/db/schema.ts";
import type { AccountId, ImageId, LayerId, OperationId } from "../../src/domain/ids.ts";
import { NO_DEFAULTS } from "../../src/domain/image-defaults.ts";
import { testDirectory } from "./images/layer-files.ts";

export const alice = "alice" as AccountId;
export const bob = "bob" as AccountId;

export function newId<T extends string = OperationId>(): T {
  return Bun.randomUUIDv7() as T;
}

/** A real database in a directory of its own. */
export interface TestDatabase extends Disposable {
  readonly db: Database;
  readonly path: string;
}

export function testDatabase(): TestDatabase {
  const directory = testDirectory("db");
  const path = join(directory, "coppice.db");
  const db = openDatabase(path);
  return {
    db,
    path,
    [Symbol.dispose]() {
      db[Symbol.dispose]();
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

/** Opens a database before each test of a file, calls `onOpen` with it, and removes it after the test. */
export function databasePerTest(onOpen: (opened: TestDatabase) => void): void {
  let opened: TestDatabase;
  beforeEach(() => {
    opened = testDatabase();
    onOpen(opened);
  });
  afterEach(() => opened[Symbol.dispose]());
}

/** Options of `fillDatabase`, by the number of an image, from 1. */
export interface FillOptions {
  readonly statusOf?: (at: number) => "SUCCESS" | "FAILED";
  readonly isTagged?: (at: number) => boolean;
  /** @param ids the ids of the images before */
  readonly parentOf: (ids: readonly ImageId[]) => ImageId | undefined;
}

/**
 * Writes images of one layer of 7 bytes, each with an ended operation, a step of a lineage and, if it is tagged, the tag
 * `tag-NUMBER`. All times are the numbers. The rows bypass the product's functions, which would take minutes.
 */
export function fillDatabase(
  path: string,
  count: number,
  { statusOf = () => "SUCCESS", isTagged = () => true, parentOf }: FillOptions,
): ImageId[] {
  const client = new Libsql(path);
  const insert = (table: string, columns: string) =>
    client.prepare(`INSERT INTO ${table} (${columns}) VALUES (${columns.replaceAll(/\w+/g, "?")})`);
  const ids: ImageId[] = [];
  client.transaction(() => {
    insert("accounts", "id, created_at").run(alice, 1);
    const layer = insert("layers", "id, format, size_bytes, disk_bytes, entry_count, created_at");
    layer.run("layer", "ext4", 7, 1, 1, 1);
    const operation = insert("operations", "id, account_id, kind, status, created_at, finished_at");
    const image = insert("images", "id, account_id, layer_id, size_bytes, created_at, tagged");
    const tag = insert("tags", "account_id, name, image_id");
    const step = insert("history", "image_id, parent_id, operation_id, size_bytes, created_at");
    for (let at = 1; at <= count; at++) {
      operation.run(newId(), alice, "instance", statusOf(at), at, at);
      const id = newId<ImageId>();
      image.run(id, alice, "layer", 1, at, Number(isTagged(at)));
      if (isTagged(at)) tag.run(alice, `tag-${at}`, id);
      step.run(id, parentOf(ids) ?? null, "x", 1, at);
      ids.push(id);
    }
  })();
  client.close();
  return ids;
}

/** Writes an empty store in the state before the last migration. @returns the names of its migrations */
export function writeOlderDatabase(path: string): string[] {
  const client = new Libsql(path);
  const older = MIGRATIONS.slice(0, -1);
  client.exec("CREATE TABLE migrations (name TEXT PRIMARY KEY NOT NULL, created_at INTEGER NOT NULL)");
  for (const { name, createdAt, statements } of older) {
    for (const statement of statements) client.exec(statement);
    client.prepare("INSERT INTO migrations (name, created_at) VALUES (?, ?)").run(name, createdAt);
  }
  client.close();
  return older.map(({ name }) => name);
}

/** Names of a store's migrations, the oldest first. */
export function migrationNames(db: Database): string[] {
  return db.orm.all<{ name: string }>("select name from migrations order by created_at").map(({ name }) => name);
}

/** Ids of all layers and merged layers that rows name. */
export function allLayerIds(db: Database): string[] {
  const rows = db.orm.all<{ id: string }>("select id from layers union select id from merged_layers");
  return rows.map(({ id }) => id);
}

/** The row of a layer; null when there is none. */
export function layerRow(db: Database, id: LayerId): LayerRow | null {
  return db.orm.select().from(layers).where(eq(layers.id, id)).get() ?? null;
}

export function addOperation(db: Database, options: Partial<NewOperation> = {}): OperationId {
  const id = options.id ?? newId();
  const defaults = {
    accountId: alice,
    kind: "instance",
    request: { body: { command: "true" } },
    hadCredentials: false,
    now: 1,
  } as const;
  insertOperation(db, { ...defaults, ...options, id });
  return id;
}

export function addExecuting(db: Database, options: Partial<NewOperation> = {}): OperationId {
  const id = addOperation(db, options);
  if (!startOperation(db, id, options.now ?? 1)) throw new Error("not started");
  return id;
}

export function someLayer(extra: Partial<NewLayer> = {}): NewLayer {
  const id = newId<LayerId>();
  return { id, parentId: null, format: "ext4", sizeBytes: 10, diskBytes: 100, entryCount: 3, ...extra };
}

export function someImage(layerId: LayerId, parentId: ImageId | null = null) {
  return { id: newId<ImageId>(), parentId, layerId, sizeBytes: 10, defaults: NO_DEFAULTS };
}

/** Imports an image as the supervisor does. */
export function importImage(
  db: Database,
  { tag, now = 1, accountId = alice }: { tag?: string; now?: number; accountId?: AccountId } = {},
): ImageId {
  const operationId = addExecuting(db, { accountId, kind: "image_import" });
  const layer = someLayer();
  const image = someImage(layer.id);
  const published = publishOperation(db, { operationId, result: {}, now, layer, image, tag });
  if (published === null) throw new Error("not published");
  return image.id;
}
