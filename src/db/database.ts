import { chmodSync } from "node:fs";
import { type SQL, sql } from "drizzle-orm";
import { BetterSQLiteSession } from "drizzle-orm/better-sqlite3/session";
import { type AnySQLiteColumn, BaseSQLiteDatabase, SQLiteSyncDialect } from "drizzle-orm/sqlite-core";
import Libsql from "libsql";
import { MIGRATIONS, type Migration } from "./migrations.ts";
import { Scans } from "./scans.ts";

/** How long a statement waits for a writer of another process, in `milliseconds`; it blocks the event loop. */
const BUSY_TIMEOUT_MS = 2000;
/** After so many statements that wrote, about a thousand pages, the log is written back into the file, in the thread. */
const CHECKPOINT_WRITES_COUNT = 250;
/** With so many pages in the log a commit writes it back by itself: the thread failed, or could not keep up. */
const CHECKPOINT_PAGES_MAX = 2048;
/** The write-ahead log is cut back to this after a checkpoint, in `bytes`. */
const JOURNAL_BYTES_MAX = 67_108_864;

export interface RunResult {
  readonly changes: number;
}

/** Rows that are kept until something is written. */
const KEPT_COUNT_MAX = 1000;
/** Statements that begin otherwise may write. */
const READS = /^\s*select\b/i;
/** Statements that are kept prepared: to prepare one takes longer than to execute most. */
const STATEMENTS_COUNT_MAX = 500;
/** A statement holds what it was executed with; one that got a longer text than this is not kept, in `characters`. */
const PARAMETER_LENGTH_MAX = 65_536;

/** Query builder of drizzle; also the type of a transaction's handle. */
export type Orm = BaseSQLiteDatabase<"sync", RunResult>;

/** The newest migration that the file has is not one of ours: a newer version wrote it. */
export class SchemaTooNewError extends Error {
  override readonly name = "SchemaTooNewError";
}

/** The file lacks migrations, and the caller did not ask for them. */
export class SchemaTooOldError extends Error {
  override readonly name = "SchemaTooOldError";
}

/**
 * What to do about migrations that the file lacks. `migrate` applies them, which a daemon of an older version does not
 * survive: only whoever holds the data directory's lock may ask for it. `require` refuses the file, and `keep` takes
 * it as it is, for what needs no more than the tables that every version has.
 */
export type SchemaPolicy = "migrate" | "require" | "keep";

/**
 * One connection to the embedded store. Everything is synchronous, so a transaction is never
 * interleaved with another one of this process.
 */
export class Database implements Disposable {
  readonly orm: Orm;
  /** for statements that read for longer than the event loop may stand still */
  readonly scans: Scans;
  readonly #client: Libsql.Database;
  readonly #statements = new Map<string, Libsql.Statement>();
  readonly #prepared = new Map<string, unknown>();
  readonly #kept = new Map<string, unknown>();
  #keptVersion = 0;
  #isKeptCurrent = false;
  #writesCount = 0;

  constructor(client: Libsql.Database, path: string) {
    this.#client = client;
    this.scans = new Scans(path);
    const dialect = new SQLiteSyncDialect();
    // The session is written for better-sqlite3, whose interface libsql has; the types do not know that.
    const session = new BetterSQLiteSession(
      observed(client, this.#statements, () => this.#onWrite()) as never,
      dialect,
      undefined,
      {},
    );
    this.orm = new BaseSQLiteDatabase("sync", dialect as never, session as never, undefined) as unknown as Orm;
  }

  /**
   * Runs `work` in one write transaction; what it throws rolls everything back. It takes the write lock at
   * once, so that a read inside it is never outdated by a writer of another process.
   */
  transaction<T>(work: (tx: Orm) => T): T {
    return this.orm.transaction((tx) => work(tx as unknown as Orm), { behavior: "immediate" });
  }

  /**
   * Runs `work` without waiting for the disk: a power failure before the next write undoes what it wrote. Nothing else
   * is lost, and a crash of this process loses nothing. Inside a transaction it is as durable as that.
   */
  unsynced<T>(work: () => T): T {
    if (this.#client.inTransaction) return work();
    this.#client.exec("PRAGMA synchronous = NORMAL");
    using _synced = { [Symbol.dispose]: () => this.#client.exec("PRAGMA synchronous = FULL") };
    return work();
  }

  /** The statement of `build`, prepared once in the life of the connection. */
  prepared<T>(name: string, build: (orm: Orm) => T): T {
    let statement = this.#prepared.get(name);
    if (statement === undefined) {
      statement = build(this.orm);
      this.#prepared.set(name, statement);
    }
    return statement as T;
  }

  /**
   * What `read` gives, which is asked again only after a write of whomever: for rows that are read much more often
   * than anything is written. A write of another process is seen from the next turn of the event loop on. The result is
   * shared, so nobody may change it.
   */
  kept<T>(key: string, read: () => T): T {
    if (!this.#isKeptCurrent) this.#lookForWrites();
    if (this.#kept.has(key)) return this.#kept.get(key) as T;
    const value = read();
    if (this.#kept.size >= KEPT_COUNT_MAX) this.#kept.clear();
    this.#kept.set(key, value);
    return value;
  }

  /** Looks for commits of other connections, the command line's for example; those of this one are observed. */
  #lookForWrites(): void {
    const statement = this.prepared("data_version", () => this.#client.prepare("PRAGMA data_version").raw(true));
    const [version] = statement.get() as unknown as [number];
    if (version !== this.#keptVersion) this.#kept.clear();
    this.#keptVersion = version;
    // A look takes a tenth of the time of an answer, and many are given in one turn.
    this.#isKeptCurrent = true;
    setImmediate(() => {
      this.#isKeptCurrent = false;
    });
  }

  #onWrite(): void {
    this.#kept.clear();
    this.#writesCount += 1;
    if (this.#writesCount < CHECKPOINT_WRITES_COUNT) return;
    this.#writesCount = 0;
    // Where it fails the log stays as it is until the next time, and a commit bounds it in the end.
    void this.scans.all({ sql: "PRAGMA wal_checkpoint(PASSIVE)", params: [] }).catch(() => undefined);
  }

  /** Writes the log back into the file and closes it; idempotent. */
  [Symbol.dispose](): void {
    if (!this.#client.open) return;
    this.scans[Symbol.dispose]();
    this.#prepared.clear();
    this.#statements.clear();
    this.#client.exec("PRAGMA wal_checkpoint(TRUNCATE)");
    this.#client.close();
  }
}

/**
 * The client as drizzle's session uses it, which keeps `statements` prepared by their text, and says `onWrite`
 * whenever what was read before may be outdated.
 */
function observed(client: Libsql.Database, statements: Map<string, Libsql.Statement>, onWrite: () => void) {
  return {
    prepare(sql: string) {
      const known = statements.get(sql);
      if (known !== undefined) return known;
      const statement = client.prepare(sql);
      observeExecution(statement, (params) => {
        if (params.some((param) => typeof param === "string" && param.length > PARAMETER_LENGTH_MAX)) {
          statements.delete(sql);
        }
      });
      if (!READS.test(sql)) observeWrites(statement, onWrite);
      readRawOnce(statement);
      if (statements.size >= STATEMENTS_COUNT_MAX) statements.clear();
      statements.set(sql, statement);
      return statement;
    },
    transaction(work: (tx: Orm) => unknown) {
      return {
        immediate(tx: Orm): unknown {
          // What was read inside is wrong when all of it was rolled back.
          using _outdated = { [Symbol.dispose]: onWrite };
          return inTransaction(client, () => work(tx));
        },
      };
    },
  };
}

/**
 * Runs `work` in one write transaction. The client's own way to do it rolls back what SQLite has rolled back already, as
 * it does by itself on a full disk, and then only that second failure is seen.
 */
function inTransaction<T>(client: Libsql.Database, work: () => T): T {
  client.exec("BEGIN IMMEDIATE");
  try {
    const result = work();
    client.exec("COMMIT");
    return result;
  } catch (error) {
    if (client.inTransaction) client.exec("ROLLBACK");
    throw error;
  }
}

/**
 * The session asks for raw rows before every execution of a statement, which costs as much as a look-up; a statement
 * that gives them once gives them always.
 */
function readRawOnce(statement: Libsql.Statement): void {
  const asRaw = statement.raw.bind(statement);
  let isRaw = false;
  statement.raw = (() => {
    if (!isRaw) asRaw(true);
    isRaw = true;
    return statement;
  }) as typeof statement.raw;
}

const EXECUTIONS = ["run", "get", "all"] as const;

function observeExecution(statement: Libsql.Statement, onExecution: (params: readonly unknown[]) => void): void {
  for (const name of EXECUTIONS) {
    const execute = (statement[name] as (...params: unknown[]) => unknown).bind(statement);
    statement[name] = ((...params: unknown[]) => {
      onExecution(params);
      return execute(...params);
    }) as never;
  }
}

function observeWrites(statement: Libsql.Statement, onWrite: () => void): void {
  for (const name of EXECUTIONS) {
    const execute = (statement[name] as (...params: unknown[]) => unknown).bind(statement);
    statement[name] = ((...params: unknown[]) => {
      using _outdated = { [Symbol.dispose]: onWrite };
      return execute(...params);
    }) as never;
  }
}

/** `column` has one of `values`, of which there may be more than a statement can have parameters. */
export function isOneOf(column: AnySQLiteColumn, values: readonly string[]): SQL {
  return sql`${column} in (select value from json_each(${JSON.stringify(values)}))`;
}

/**
 * Opens the store at `path` (made when absent) and, unless told otherwise, brings its schema up to date.
 * @throws SchemaTooNewError when a newer version of the program wrote the file
 * @throws SchemaTooOldError when the file lacks migrations and `schema` is `require`
 */
export function openDatabase(path: string, schema: SchemaPolicy = "migrate"): Database {
  const client = new Libsql(path, { timeout: BUSY_TIMEOUT_MS });
  try {
    // The log and its index get the mode of the file.
    chmodSync(path, 0o600);
    client.exec("PRAGMA journal_mode = WAL");
    // An acknowledged write must survive a power failure; NORMAL would only keep the file consistent.
    client.exec("PRAGMA synchronous = FULL");
    // Requests hold what nobody else may read (stdin, environment), and are deleted when their operation ends.
    client.exec("PRAGMA secure_delete = ON");
    client.exec(`PRAGMA journal_size_limit = ${JOURNAL_BYTES_MAX}`);
    client.exec(`PRAGMA wal_autocheckpoint = ${CHECKPOINT_PAGES_MAX}`);
    client.exec("PRAGMA foreign_keys = OFF");
    if (schema === "migrate") migrate(client, MIGRATIONS);
    else if (missingMigrations(client, MIGRATIONS).length > 0 && schema === "require") {
      throw new SchemaTooOldError("the database was written by an older version");
    }
    client.exec("PRAGMA foreign_keys = ON");
  } catch (error) {
    client.close();
    throw error;
  }
  return new Database(client, path);
}

/**
 * Applies what is missing, in one transaction. It is our own because drizzle's one reads the state before it
 * takes the write lock: two processes that open a new file at once would both apply everything.
 */
function migrate(client: Libsql.Database, migrations: readonly Migration[]): void {
  inTransaction(client, () => {
    client.exec("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY NOT NULL, created_at INTEGER NOT NULL)");
    const missing = missingMigrations(client, migrations);
    // The check below reads every table to its end, which only a change of the schema is worth.
    if (missing.length === 0) return;
    const insert = client.prepare("INSERT INTO migrations (name, created_at) VALUES (?, ?)");
    for (const migration of missing) {
      for (const statement of migration.statements) client.exec(statement);
      insert.run(migration.name, migration.createdAt);
    }
    const broken = client.prepare("PRAGMA foreign_key_check").all();
    if (broken.length > 0) throw new Error(`a migration left ${broken.length} dangling references`);
  });
}

/** Migrations that the file does not have yet. @throws SchemaTooNewError */
function missingMigrations(client: Libsql.Database, migrations: readonly Migration[]): readonly Migration[] {
  const table = client.prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migrations'").get();
  if (table === undefined) return migrations;
  const last = client.prepare("SELECT name, created_at FROM migrations ORDER BY created_at DESC LIMIT 1").get() as
    | { name: string; created_at: number }
    | undefined;
  if (last !== undefined && !migrations.some((migration) => migration.name === last.name)) {
    throw new SchemaTooNewError(`the database was written by a newer version (its schema is ${last.name})`);
  }
  return migrations.filter(({ createdAt }) => last === undefined || createdAt > last.created_at);
}
