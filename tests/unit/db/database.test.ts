import { beforeEach, describe, expect, test } from "bun:test";
import { existsSync, statSync } from "node:fs";
import { setImmediate as nextTurn } from "node:timers/promises";
import { sql } from "drizzle-orm";
import Libsql from "libsql";
import { type Database, openDatabase, statement } from "../../../src/db/database.ts";
import { deleteFilesUnusedSince, getFile, isBlobReferenced, upsertFile } from "../../../src/db/files.ts";
import { MIGRATIONS, SchemaTooNewError } from "../../../src/db/migrations.ts";
import { getOperation, requestCancel, startOperation } from "../../../src/db/operations.ts";
import { publishOperation } from "../../../src/db/publish.ts";
import {
  forgetEndedTokens,
  getToken,
  insertToken,
  listTokens,
  revokeToken,
  type TokenFilter,
} from "../../../src/db/tokens.ts";
import { storageFull } from "../../../src/domain/errors.ts";
import type { FileId } from "../../../src/domain/ids.ts";
import {
  addExecuting,
  addOperation,
  alice,
  bob,
  databasePerTest,
  newId,
  type TestDatabase,
} from "../../support/database.ts";
import { until } from "../../support/waiting.ts";

let opened: TestDatabase;
let db: Database;
databasePerTest((each) => {
  opened = each;
  db = each.db;
});

describe("the database", () => {
  test("is durable and checked, and waits for other writers", () => {
    const pragma = (name: string) => Object.values(db.orm.get(sql.raw(`pragma ${name}`)) as object)[0];
    expect(pragma("journal_mode")).toBe("wal");
    expect(pragma("synchronous")).toBe(2);
    expect(pragma("foreign_keys")).toBe(1);
    expect(pragma("busy_timeout")).toBeGreaterThan(0);
  });

  test("waits longer while a daemon runs, and does not touch the daemon's log", () => {
    const timeoutOf = ({ orm }: Database) =>
      Number(Object.values(orm.get(sql.raw("pragma busy_timeout")) as object)[0]);
    const bytesOfLog = () => statSync(`${opened.path}-wal`).size;
    addOperation(db);
    const second = openDatabase(opened.path, "require", { sharesFile: true });
    expect(timeoutOf(second)).toBeGreaterThan(timeoutOf(db));
    expect(getOperation(second, alice, addOperation(second))).not.toBeNull();
    const before = bytesOfLog();
    second[Symbol.dispose]();
    // A checkpoint that empties it blocks writes of the daemon.
    expect([before > 0, bytesOfLog()]).toEqual([true, before]);
  });

  test("syncs again after a write without a sync, whether that succeeds or not", () => {
    const synchronous = () => Object.values(db.orm.get(sql.raw("pragma synchronous")) as object)[0];
    expect(db.withoutSync(synchronous)).toBe(1);
    expect(synchronous()).toBe(2);
    expect(() => db.withoutSync(() => db.orm.run(sql.raw("insert into nothing values (1)")))).toThrow();
    expect(synchronous()).toBe(2);
    expect(startOperation(db, addOperation(db), 1)).toBe(true);
    expect(synchronous()).toBe(2);
  });

  test("can be read only by its owner, with its log and index", () => {
    addOperation(db);
    for (const suffix of ["", "-wal", "-shm"]) expect(statSync(opened.path + suffix).mode & 0o777).toBe(0o600);
  });

  test("keeps everything over a close, which empties the write-ahead log", () => {
    const id = addOperation(db);
    db[Symbol.dispose]();
    db[Symbol.dispose]();
    expect(existsSync(`${opened.path}-wal`) ? statSync(`${opened.path}-wal`).size : 0).toBe(0);
    using again = openDatabase(opened.path);
    expect(getOperation(again, alice, id)?.status).toBe("PENDING");
  });

  test("keeps acknowledged writes when the process dies without a close", () => {
    const id = addOperation(db);
    using other = openDatabase(opened.path);
    expect(getOperation(other, alice, id)?.status).toBe("PENDING");
  });

  test("checkpoints the write-ahead log in the thread, not in a commit", async () => {
    const pages = (suffix: string) => Math.floor(statSync(opened.path + suffix).size / 4096);
    const before = pages("");
    const { scans } = db;
    const upkeep = scans.upkeep;
    scans.upkeep = () => new Promise(() => undefined);
    // The log grows beyond the thousand pages at which a commit checkpoints by default.
    while (pages("-wal") < 1500) addOperation(db);
    expect(pages("")).toBe(before);
    scans.upkeep = upkeep;
    for (let count = 0; count < 100; count++) addOperation(db);
    await until("the log is written back", () => pages("") > before);
    // Later commits start at its beginning again.
    await until("the log is used again", () => {
      const log = pages("-wal");
      for (let count = 0; count < 10; count++) addOperation(db);
      return pages("-wal") === log;
    });
  });

  test("rolls a transaction back as a whole", () => {
    expect(() =>
      db.transaction((tx) => {
        tx.run(sql`insert into accounts (id, created_at) values ('x', 1)`);
        throw new Error("undo");
      }),
    ).toThrow("undo");
    expect(db.orm.all(sql`select * from accounts`)).toEqual([]);
  });

  test("reports a full disk, although SQLite has rolled back by itself", () => {
    const id = addOperation(db);
    // Without a cache, pages are written within a transaction, so that a full disk ends it.
    for (const pragma of ["cache_size = 1", "max_page_count = 1"]) db.orm.all(sql.raw(`pragma ${pragma}`));
    const fill = () =>
      db.transaction((tx) => {
        for (let count = 0; count < 1000; count++) {
          tx.run(sql`insert into accounts (id, created_at) values (${`${count}`.padEnd(5000, "x")}, 1)`);
        }
      });
    let failure: unknown = null;
    try {
      fill();
    } catch (error) {
      failure = error;
    }
    expect(storageFull(failure)?.code).toBe("insufficient_storage");
    db.orm.all(sql.raw("pragma max_page_count = 1000000"));
    expect(startOperation(db, id, 1)).toBe(true);
    fill();
  });

  test("caches a row until something is written", () => {
    const id = addOperation(db);
    const first = getOperation(db, alice, id);
    expect(getOperation(db, alice, id)).toBe(first);
    expect(getOperation(db, bob, id)).toBeNull();
    expect(startOperation(db, id, 2)).toBe(true);
    expect(getOperation(db, alice, id)).toMatchObject({ status: "EXECUTING", startedAt: 2 });
  });

  test("caches no row over a turn of the event loop in which another connection changed it", async () => {
    const id = addOperation(db);
    expect(getOperation(db, alice, id)?.status).toBe("PENDING");
    using other = openDatabase(opened.path);
    expect(startOperation(other, id, 2)).toBe(true);
    await nextTurn();
    expect(getOperation(db, alice, id)?.status).toBe("EXECUTING");
  });

  test("reads no cached row in a transaction that another connection changed before it", () => {
    const id = addOperation(db);
    expect(getOperation(db, alice, id)?.status).toBe("PENDING");
    using other = openDatabase(opened.path);
    expect(startOperation(other, id, 2)).toBe(true);
    expect(db.transaction(() => getOperation(db, alice, id)?.status)).toBe("EXECUTING");
  });

  test("caches nothing that a transaction read that was rolled back", () => {
    const id = addOperation(db);
    expect(() =>
      db.transaction(() => {
        expect(startOperation(db, id, 2)).toBe(true);
        expect(getOperation(db, alice, id)?.status).toBe("EXECUTING");
        throw new Error("undo");
      }),
    ).toThrow("undo");
    expect(getOperation(db, alice, id)?.status).toBe("PENDING");
  });

  test("prepares a statement once, but keeps none with large values", () => {
    const texts: string[] = [];
    const prototype = Libsql.prototype as { prepare(sql: string): unknown };
    const prepare = prototype.prepare;
    prototype.prepare = function (this: unknown, text: string) {
      texts.push(text);
      return prepare.call(this, text);
    };
    using _prototype = { [Symbol.dispose]: () => Object.assign(prototype, { prepare }) };
    const insert = (request: object): string[] => {
      texts.length = 0;
      addOperation(db, { request: { body: request } });
      return texts.filter((text) => text.includes("operation_requests"));
    };
    expect(insert({ stdin: "x".repeat(100_000) })).toHaveLength(1);
    expect(insert({ stdin: "x" })).toHaveLength(1);
    expect(insert({ stdin: "x" })).toHaveLength(0);
  });

  test("of a newer version is refused and not changed", () => {
    db[Symbol.dispose]();
    const client = new Libsql(opened.path);
    client.exec("INSERT INTO migrations (name, created_at) VALUES ('9999_future', 9999999999999)");
    client.close();
    expect(() => openDatabase(opened.path)).toThrow(SchemaTooNewError);
  });

  test("has migrations in strictly increasing order", () => {
    const times = MIGRATIONS.map((migration) => migration.createdAt);
    expect(times).toEqual([...new Set(times)].toSorted((a, b) => a - b));
    expect(db.orm.all(sql`select name from migrations`)).toHaveLength(MIGRATIONS.length);
  });

  test("refuses rows that contradict themselves", () => {
    const id = addOperation(db);
    expect(() => db.orm.run(sql`update operations set status = 'SUCCESS' where id = ${id}`)).toThrow();
    expect(() => db.orm.run(sql`delete from accounts`)).toThrow();
    expect(getOperation(db, alice, id)?.status).toBe("PENDING");
  });

  test("answers listings from an index, whatever the filter", () => {
    const client = new Libsql(opened.path);
    const plans = [
      "account_id = 1",
      "account_id = 1 and status = 'FAILED'",
      "account_id = 1 and kind = 'instance'",
      "account_id = 1 and kind = 'instance' and status = 'FAILED'",
      "account_id = 1 and created_at between 1 and 2",
    ].map((where) => {
      const order = "order by created_at desc, id desc limit 10 offset 5";
      const rows = client.prepare(`explain query plan select id from operations where ${where} ${order}`).all();
      return (rows as { detail: string }[]).map((row) => row.detail).join("; ");
    });
    for (const plan of plans) {
      expect(plan).toContain("COVERING INDEX");
      expect(plan).not.toContain("TEMP B-TREE");
    }
    client.close();
  });
});

describe("files", () => {
  const sha = (digit: string) => digit.repeat(64);

  test("of the same content keep their uuid within an account", () => {
    const one = upsertFile(db, { accountId: alice, sha256: sha("a"), sizeBytes: 5, now: 1 });
    const again = upsertFile(db, { accountId: alice, sha256: sha("a"), sizeBytes: 5, now: 9 });
    expect(again).toEqual({ ...one, uploadedAt: 9, lastUsedAt: 9 });
    const theirs = upsertFile(db, { accountId: bob, sha256: sha("a"), sizeBytes: 5, now: 2 });
    expect(theirs.id).not.toBe(one.id);
  });

  test("are found by uuid and hash, of the own account only", () => {
    const { id } = upsertFile(db, { accountId: alice, sha256: sha("a"), sizeBytes: 5, now: 1 });
    expect(getFile(db, alice, { uuid: id })?.sha256).toBe(sha("a"));
    expect(getFile(db, alice, { sha256: sha("a") })?.id).toBe(id);
    expect(getFile(db, alice, { uuid: id, sha256: sha("b") })).toBeNull();
    expect(getFile(db, alice, { uuid: newId<FileId>() })).toBeNull();
    expect(getFile(db, alice, {})).toBeNull();
    expect(getFile(db, bob, { uuid: id })).toBeNull();
    expect(getFile(db, bob, { sha256: sha("a") })).toBeNull();
  });

  test("that were not used for a long time are removed, the blob only with its last row", () => {
    const mine = upsertFile(db, { accountId: alice, sha256: sha("a"), sizeBytes: 5, now: 1 });
    const theirs = upsertFile(db, { accountId: bob, sha256: sha("a"), sizeBytes: 5, now: 2 });
    const fresh = upsertFile(db, { accountId: alice, sha256: sha("b"), sizeBytes: 5, now: 1 });
    const awaited = upsertFile(db, { accountId: alice, sha256: sha("c"), sizeBytes: 5, now: 1 });
    const used = addExecuting(db, { request: { body: {}, fileIds: [fresh.id] }, now: 50 });
    publishOperation(db, { operationId: used, result: {}, now: 51 });
    const waiting = addOperation(db, { request: { body: {}, fileIds: [awaited.id, awaited.id] }, now: 1 });
    expect(deleteFilesUnusedSince(db.orm, 50, 1)).toEqual([mine]);
    expect(isBlobReferenced(db.orm, sha("a"))).toBe(true);
    expect(deleteFilesUnusedSince(db.orm, 50, 10)).toEqual([theirs]);
    expect(isBlobReferenced(db.orm, sha("a"))).toBe(false);
    expect(isBlobReferenced(db.orm, sha("b"))).toBe(true);
    expect(isBlobReferenced(db.orm, sha("c"))).toBe(true);
    requestCancel(db, alice, waiting, 60);
    expect(deleteFilesUnusedSince(db.orm, 50, 10).map(({ id }) => id)).toEqual([awaited.id]);
  });

  test("that were removed fail the submission, which leaves nothing behind", () => {
    const id = newId();
    const request = { body: {}, fileIds: [newId<FileId>()] };
    expect(() => addOperation(db, { id, request })).toThrow("a file of the request is gone");
    expect(getOperation(db, alice, id)).toBeNull();
  });
});

describe("tokens", () => {
  const token = (jti: string, accountId = alice, issuedAt = 1) => ({
    jti,
    accountId,
    scopes: ["images:read", "*"],
    keyId: "k1",
    issuedAt,
    expiresAt: 100,
  });

  test("are recorded, listed newest first and revoked once", () => {
    insertToken(db, token("one"));
    insertToken(db, token("two", bob, 2));
    expect(getToken(db, "one")).toEqual({ ...token("one"), revokedAt: null });
    expect(getToken(db, "none")).toBeNull();
    const listed = (filter: Partial<TokenFilter>) => listTokens(db, { now: 0, ...filter }).map((row) => row.jti);
    expect(listed({})).toEqual(["two", "one"]);
    expect(listed({ accountId: alice })).toEqual(["one"]);
    expect([listed({ limit: 1 }), listed({ limit: 1, offset: 1 }), listed({ offset: 2 })]).toEqual([
      ["two"],
      ["one"],
      [],
    ]);
    expect(revokeToken(db, "one", 7)).toBe(true);
    expect(revokeToken(db, "one", 8)).toBe(false);
    expect(revokeToken(db, "none", 8)).toBe(false);
    expect(getToken(db, "one")?.revokedAt).toBe(7);
    expect(() => insertToken(db, token("one"))).toThrow("UNIQUE");
  });

  test("that have ended are forgotten but for the newest, and those of others and valid ones never", () => {
    for (const [jti, at] of [
      ["a", 1],
      ["b", 2],
      ["c", 3],
      ["d", 4],
    ] as const)
      insertToken(db, token(jti, alice, at));
    insertToken(db, token("other", bob, 1));
    for (const jti of ["a", "b", "other"]) revokeToken(db, jti, 5);
    forgetEndedTokens(db, alice, 50, 1);
    expect(listTokens(db, { now: 50 }).map(({ jti }) => jti)).toEqual(["d", "c", "b", "other"]);
    forgetEndedTokens(db, alice, 100, 1);
    expect(listTokens(db, { now: 100, accountId: alice }).map(({ jti }) => jti)).toEqual(["d"]);
  });

  test("revoked by another process are seen at once", () => {
    insertToken(db, token("one"));
    expect(getToken(db, "one")?.revokedAt).toBeNull();
    using other = openDatabase(opened.path);
    revokeToken(other, "one", 7);
    expect(getToken(db, "one")?.revokedAt).toBe(7);
  });
});

describe("declared statements", () => {
  let builtCount = 0;
  const one = statement((orm) => {
    builtCount += 1;
    return orm.select({ one: sql<number>`1` }).from(sql`(select 1)`).prepare();
  });
  beforeEach(() => {
    builtCount = 0;
  });

  test("are prepared before their first use, each in a turn of its own", async () => {
    let turnsCount = 0;
    await db.prepareAll(async () => {
      turnsCount += 1;
    });
    expect(builtCount).toBe(1);
    expect(turnsCount).toBeGreaterThan(20);
    expect(one(db).get()).toEqual({ one: 1 });
    expect(builtCount).toBe(1);
  });

  test("are forgotten when one of them may keep a long text", () => {
    one(db).get();
    one(db).get();
    expect(builtCount).toBe(1);
    addOperation(db, { request: { body: { command: "x".repeat(70_000) } } });
    one(db).get();
    expect(builtCount).toBe(2);
  });

  test("end with the connection", async () => {
    const preparing = db.prepareAll(() => Promise.resolve());
    opened[Symbol.dispose]();
    await preparing;
    expect(builtCount).toBe(0);
  });
});
