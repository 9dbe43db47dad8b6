import { closeSync, openSync } from "node:fs";
import Libsql from "libsql";
import type { LayerId } from "../../src/domain/ids.ts";
import { indexPath, layerPath } from "../../src/storage/layers/layers.ts";
import type { DataLayout } from "../../src/storage/layout.ts";

const BATCH_COUNT = 10_000;
const RUN_MS = 200;
const FAILED_EVERY_COUNT = 8;
const TAGGED_EVERY_COUNT = 2;

export interface Fill {
  readonly account: string;
  readonly operations: number;
  /** made by the last of the operations, half of them tagged, each with a layer of its own */
  readonly images: number;
  /** true: the images are branches, as `parentAt` says, and few are tagged; false or absent: each is one of its own */
  readonly isForest?: boolean;
}

/** Writes ended operations and images as the daemon does, which must not run meanwhile. */
export function fillStore(layout: DataLayout, fills: readonly Fill[]): void {
  const db = new Libsql(layout.database);
  // The written files are only read as long as this machine is up.
  db.exec("PRAGMA synchronous = OFF");
  for (const fill of fills) fillAccount(db, layout, fill);
  db.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  db.close();
}

function fillAccount(
  db: Libsql.Database,
  layout: DataLayout,
  { account, operations, images, isForest = false }: Fill,
): void {
  const first = Date.now() - operations * 1000;
  db.prepare("INSERT OR IGNORE INTO accounts (id, created_at) VALUES (?, ?)").run(account, first);
  const operation = db.prepare(
    `INSERT INTO operations (id, account_id, kind, status, created_at, started_at, finished_at, result, error)
     VALUES (?, ?, 'instance', ?, ?, ?, ?, ?, ?)`,
  );
  const addImage = isForest ? branchWriter(db, layout, account) : imageWriter(db, layout, account);
  const stream = { truncated: false, empty: true };
  const result = JSON.stringify({ exit_code: 0, stdout: stream, stderr: stream });
  const error = JSON.stringify({ error: "unavailable", message: "made up", details: {} });
  inBatches(db, operations, (n) => {
    const at = first + n * 1000;
    const id = Bun.randomUUIDv7("hex", at);
    const failed = n % FAILED_EVERY_COUNT === 0;
    const end = failed ? ["FAILED", null, error] : ["SUCCESS", result, null];
    operation.run(id, account, end[0], at, at, at + RUN_MS, end[1], end[2]);
    if (n >= operations - images) addImage(n, id, at + RUN_MS);
  });
}

function imageWriter(
  db: Libsql.Database,
  layout: DataLayout,
  account: string,
): (n: number, operation: string, at: number) => void {
  const layer = db.prepare(
    `INSERT INTO layers (id, format, size_bytes, disk_bytes, entry_count, created_at)
     VALUES (?, 'ext4', 4096, 4096, 1, ?)`,
  );
  const image = db.prepare(
    `INSERT INTO images (id, account_id, operation_id, layer_id, size_bytes, tagged, created_at)
     VALUES (?, ?, ?, ?, 4096, ?, ?)`,
  );
  const tag = db.prepare("INSERT INTO tags (account_id, name, image_id) VALUES (?, ?, ?)");
  const history = db.prepare(
    `INSERT INTO history (image_id, operation_id, command, exit_code, size_bytes, started_at, created_at)
     VALUES (?, ?, '["/bin/sh","-c","true"]', 0, 4096, ?, ?)`,
  );
  return (n, operation, at) => {
    const id = Bun.randomUUIDv7("hex", at);
    // The contents of its files are not read here, but the daemon reads their names when it starts.
    for (const pathOf of [layerPath, indexPath]) closeSync(openSync(pathOf(layout, id as LayerId), "wx"));
    layer.run(id, at);
    const tagged = n % TAGGED_EVERY_COUNT === 0;
    image.run(id, account, operation, id, tagged ? 1 : 0, at);
    if (tagged) tag.run(account, `tag-${n}`, id);
    history.run(id, operation, at - RUN_MS, at);
  };
}

const TREE_COUNT = 2000;
const BRANCH_COUNT = 50;
const FORKED_EVERY_COUNT = 7;
const NAMED_EVERY_COUNT = 40;
const FAILED_RUN_EVERY_COUNT = 9;
const COMMANDS = [
  ["/bin/sh", "-c", "apt-get update && apt-get install -y build-essential pkg-config libssl-dev"],
  ["python3", "-m", "pytest", "tests/unit", "-q", "--maxfail=1"],
  ["npm", "ci"],
  ["/bin/sh", "-c", "make -j2 && make install"],
  ["git", "apply", "/tmp/change.patch"],
];

/**
 * The parent of the image `n`: every TREE_COUNT images a tree begins with an import, every BRANCH_COUNT a branch leaves
 * an earlier one, and within a branch most images are made from the one before.
 */
function parentAt(n: number): number | null {
  if (n % TREE_COUNT === 0) return null;
  const tree = n - (n % TREE_COUNT);
  if (n % BRANCH_COUNT === 0) return tree + ((n * 31) % (n - tree));
  return n % FORKED_EVERY_COUNT === 0 ? n - (n % BRANCH_COUNT) + ((n * 13) % (n % BRANCH_COUNT)) : n - 1;
}

function branchWriter(
  db: Libsql.Database,
  layout: DataLayout,
  account: string,
): (n: number, operation: string, at: number) => void {
  const layer = db.prepare(
    `INSERT INTO layers (id, parent_id, format, size_bytes, disk_bytes, entry_count, created_at)
     VALUES (?, ?, 'ext4', ?, 4096, 1, ?)`,
  );
  const image = db.prepare(
    `INSERT INTO images (id, account_id, parent_id, operation_id, layer_id, size_bytes, tagged, created_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
  );
  const tag = db.prepare("INSERT INTO tags (account_id, name, image_id) VALUES (?, ?, ?)");
  const history = db.prepare(
    `INSERT INTO history (image_id, parent_id, operation_id, command, source, exit_code, size_bytes, started_at, created_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
  );
  const ids: string[] = [];
  return (_, operation, at) => {
    const n = ids.length;
    const id = Bun.randomUUIDv7("hex", at);
    ids.push(id);
    const from = parentAt(n);
    const parent = from === null ? null : (ids[from] ?? null);
    const sizeBytes = from === null ? 80_000_000 : 4096 * (1 + ((n * 97) % 5000));
    for (const pathOf of [layerPath, indexPath]) closeSync(openSync(pathOf(layout, id as LayerId), "wx"));
    layer.run(id, parent, sizeBytes, at);
    const isNamed = from === null || n % NAMED_EVERY_COUNT === 0;
    image.run(id, account, parent, operation, id, sizeBytes, isNamed ? 1 : 0, at);
    if (isNamed) tag.run(account, from === null ? `base-${n}` : `kept/${n}`, id);
    const command = from === null ? null : JSON.stringify(COMMANDS[n % COMMANDS.length]);
    const source = from === null ? `registry.example.net/debian:${n}` : null;
    const exitCode = from === null ? null : n % FAILED_RUN_EVERY_COUNT === 0 ? 1 : 0;
    history.run(id, parent, operation, command, source, exitCode, sizeBytes, at - RUN_MS, at);
  };
}

function inBatches(db: Libsql.Database, count: number, write: (n: number) => void): void {
  for (let start = 0; start < count; start += BATCH_COUNT) {
    db.transaction(() => {
      for (let n = start; n < Math.min(count, start + BATCH_COUNT); n++) write(n);
    })();
  }
}
