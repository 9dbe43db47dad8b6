import { expect, test } from "bun:test";
import { rmSync } from "node:fs";
import { join } from "node:path";
import Libsql from "libsql";
import { openDatabase } from "../../../src/db/database.ts";
import { deleteFilesUnusedSince } from "../../../src/db/files.ts";
import { MIGRATIONS } from "../../../src/db/migrations.ts";
import { operationRequest, queuedOperations } from "../../../src/db/requests.ts";
import type { FileId, OperationId } from "../../../src/domain/ids.ts";
import { alice, newId } from "../../support/database.ts";
import { testDirectory } from "../../support/layer-files.ts";

const resources = { vcpus: 1, memoryBytes: 268_435_456, diskBytes: 1_073_741_824 };
const SHA256 = "a".repeat(64);

/** A database with the schema without a secret part of requests, and these requests waiting. */
function olderDatabase(path: string, requests: ReadonlyMap<OperationId, object>, fileId: FileId): void {
  const client = new Libsql(path);
  client.exec("CREATE TABLE migrations (name TEXT PRIMARY KEY NOT NULL, created_at INTEGER NOT NULL)");
  for (const { name, createdAt, statements } of MIGRATIONS.slice(0, 4)) {
    for (const statement of statements) client.exec(statement);
    client.prepare("INSERT INTO migrations VALUES (?, ?)").run(name, createdAt);
  }
  client.prepare("INSERT INTO accounts VALUES (?, 1)").run(alice);
  client.prepare("INSERT INTO files VALUES (?, ?, ?, 5, 1, 1)").run(fileId, alice, SHA256);
  for (const [id, body] of requests) {
    const kind = "imageId" in body ? "instance" : "image_import";
    const insert = "INSERT INTO operations (id, account_id, kind, status, created_at) VALUES (?, ?, ?, 'PENDING', 1)";
    client.prepare(insert).run(id, alice, kind);
    client.prepare("INSERT INTO operation_requests VALUES (?, ?)").run(id, JSON.stringify(body));
  }
  client.close();
}

test("waiting requests stay the same when the schema changes", () => {
  const directory = testDirectory("request-migration");
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true, force: true }) };
  const path = join(directory, "coppice.db");
  const fileId = newId<FileId>();
  const file = { fileId, sha256: SHA256 };
  const env = { A: "1", 'quo"ted': "ü", __proto__x: "y" };
  const common = { imageId: newId(), argv: ["cat"], cwd: "/root", timeoutSeconds: 5, hostname: null, disposable: true };
  const placed = { ...file, path: "/in", sizeBytes: 5, mode: 420 };
  const [run, plain, pull, load] = [newId(), newId(), newId(), newId()];
  const bodies = new Map<OperationId, object>([
    [run, { ...common, env, stdin: "base64:AP8=", files: [placed, { ...placed, path: "/b" }], resources }],
    [plain, { ...common, env: {}, stdin: null, files: [], resources }],
    [pull, { registry: "registry.example.net/a:1", tag: "t", timeoutSeconds: 7, credentials: null }],
    [load, { registry: `archive sha256:${SHA256}`, files: [file], tag: null, timeoutSeconds: 8, credentials: null }],
  ]);
  olderDatabase(path, bodies, fileId);
  using db = openDatabase(path);
  const requestOf = (id: OperationId) => operationRequest(db, id);
  expect(requestOf(run)).toEqual({
    body: { ...common, files: [placed, { ...placed, path: "/b" }] },
    secrets: { env, stdin: "base64:AP8=", stdinFileBytes: null },
    resources,
  });
  const secrets = { env: {}, stdin: null, stdinFileBytes: null };
  expect(requestOf(plain)).toEqual({ body: { ...common, files: [] }, secrets, resources });
  const registry = { kind: "registry", reference: "registry.example.net/a:1" };
  const none = { secrets: null, resources: null };
  expect(requestOf(pull)).toEqual({ body: { source: registry, tag: "t", timeoutSeconds: 7 }, ...none });
  expect(requestOf(load)).toEqual({
    body: { source: { kind: "archive", ...file }, tag: null, timeoutSeconds: 8 },
    ...none,
  });
  const sizes = new Map(queuedOperations(db).map(({ id, sizeBytes }) => [id, sizeBytes]));
  const expected = [...bodies].map(([id, body]) => [id, Buffer.byteLength(JSON.stringify(body))] as const);
  expect(sizes).toEqual(new Map(expected));
  expect(deleteFilesUnusedSince(db.orm, 100, 10)).toEqual([]);
});
