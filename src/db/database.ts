import { chmodSync } from "node:fs";
import { getTableColumns, type Placeholder, type SQL, sql } from "drizzle-orm";
import { BetterSQLiteSession } from "drizzle-orm/better-sqlite3/session";
import { type AnySQLiteColumn, BaseSQLiteDatabase, SQLiteSyncDialect, type SQLiteTable } from "drizzle-orm/sqlite-core";
import Libsql from "libsql";
import type { Accounts } from "../domain/account/accounts.ts";
import { drizzleClient, type Orm } from "./drizzle-client.ts";
import { migrate, missingMigrations } from "./migrations.ts";
import { Scans } from "./scans/scans.ts";

/** How long a statement waits for a writer in another process, in `milliseconds`. The wait blocks the event loop. */
const BUSY_TIMEOUT_MS = 2000;
/** The same for a command that runs while a daemon does. No client waits for it, and a slow disk takes seconds for each commit. */
const BESIDE_BUSY_TIMEOUT_MS = 30_000;
/** Number of writing statements, about a thousand pages, after which the thread for upkeep checkpoints the log. */
const CHECKPOINT_WRITES_COUNT = 250;
/** Rows of one statement that count as a statement more: they share pages. */
const ROWS_OF_WRITE = 32;
/** Number of pages in the log at which a commit checkpoints it, when the thread failed or could not keep up. */
const CHECKPOINT_PAGES_MAX = 2048;
/** Time from a call of `eraseSoon` to the erasure, in `milliseconds`: short for a secret, long for a busy service. */
const ERASE_MS = 60_000;
/** Size to which a checkpoint truncates the write-ahead log, in `bytes`. */
const JOURNAL_BYTES_MAX = 67_108_864;

/** Limit of cached reads. */
const CACHE_COUNT_MAX = 1000;

const declared: ((orm: Orm) => unknown)[] = [];

/**
 * Declares a statement that each connection prepares once, also for transactions. To be called when a module is loaded.
 * Building a statement takes several times as long as executing it.
 */
export function statement<T>(build: (orm: Orm) => T): (db: Database) => T {
  declared.push(build);
  return (db) => db.prepared(build);
}

/** The file lacks migrations, and the caller did not allow them to be applied. */
export class SchemaTooOldError extends Error {
  override readonly name = "SchemaTooOldError";
}

/**
 * The action when the file lacks migrations. `migrate` applies them; because a running daemon of an older version would
 * fail then, the caller must hold the lock of the data directory. `require` refuses the file. `keep` opens it unchanged, for
 * callers that use only tables that every version has.
 */
export type SchemaPolicy = "migrate" | "require" | "keep";

export interface DatabaseOptions {
  /** true: another process serves callers from the file, and this one may wait for it */
  readonly sharesFile?: boolean;
  /** bounds the queries of accounts that wait; default: a record of its own */
  readonly accounts?: Accounts;
}

/**
 * One connection to the embedded database. All calls are synchronous, so the transactions of this process never
 * interleave.
 */
export class Database implements Disposable {
  readonly orm: Orm;
  /** for statements that would block the event loop for too long */
  readonly scans: Scans;
  readonly #client: Libsql.Database;
  readonly #sharesFile: boolean;
  readonly #statements = new Map<string, Libsql.Statement>();
  readonly #prepared = new Map<(orm: Orm) => unknown, unknown>();
  #dataVersion: Libsql.Statement | null = null;
  readonly #cache = new Map<string, unknown>();
  #cacheVersion = 0;
  #isCacheCurrent = false;
  #writesCount = 0;
  #checkpointed: Promise<unknown> = Promise.resolve();
  #erasing: Timer | null = null;

  constructor(client: Libsql.Database, path: string, { sharesFile = false, accounts }: DatabaseOptions) {
    this.#client = client;
    this.#sharesFile = sharesFile;
    this.scans = new Scans(path, accounts);
    const dialect = new SQLiteSyncDialect();
    // The session is written for better-sqlite3. libsql has the same interface, which the types do not express.
    const session = new BetterSQLiteSession(
      drizzleClient(client, this.#statements, {
        onWrite: (changes) => this.#onWrite(changes),
        onLongParameter: () => this.#prepared.clear(),
      }) as never,
      dialect,
      undefined,
      {},
    );
    this.orm = new BaseSQLiteDatabase("sync", dialect as never, session as never, undefined) as unknown as Orm;
  }

  /**
   * Runs `work` in one write transaction, which an exception rolls back. The transaction takes the write lock when it
   * begins, so that writers in other processes cannot outdate what it reads.
   */
  transaction<T>(work: (tx: Orm) => T): T {
    const locked = (tx: unknown): T => {
      // Another process may have committed since the last check. None can until the end of the transaction.
      this.#isCacheCurrent = false;
      return work(tx as Orm);
    };
    return this.orm.transaction(locked, { behavior: "immediate" });
  }

  /**
   * Runs `work` without syncing its writes to the disk. A power failure before the next synced write undoes them; a crash
   * of this process does not. Inside a transaction it has no effect.
   */
  withoutSync<T>(work: () => T): T {
    if (this.#client.inTransaction) return work();
    this.#client.exec("PRAGMA synchronous = NORMAL");
    using _synced = { [Symbol.dispose]: () => this.#client.exec("PRAGMA synchronous = FULL") };
    return work();
  }

  /** The statement that `build` makes, prepared at its first use. Only `statement` calls this. */
  prepared<T>(build: (orm: Orm) => T): T {
    let statement = this.#prepared.get(build);
    if (statement === undefined) {
      statement = build(this.orm);
      this.#prepared.set(build, statement);
    }
    return statement as T;
  }

  /** Prepares all declared statements, each in a turn of its own: together they would make the first request of its kind slow. */
  async prepareAll(turn: () => Promise<void>): Promise<void> {
    for (const build of declared) {
      await turn();
      if (!this.#client.open) return;
      this.prepared(build);
    }
  }

  /**
   * The cached result of `read`, for rows that are read much more often than anything is written. Every write of this
   * connection clears the cache at once; a write of another process clears it by the next turn of the event loop, and by the
   * next transaction. The result is shared, so callers must not change it.
   */
  cached<T>(key: string, read: () => T): T {
    if (!this.#isCacheCurrent) this.#checkForeignWrites();
    if (this.#cache.has(key)) return this.#cache.get(key) as T;
    const value = read();
    if (this.#cache.size >= CACHE_COUNT_MAX) this.#cache.clear();
    this.#cache.set(key, value);
    return value;
  }

  /** Clears the cache after commits of other connections, for example those of the command line. */
  #checkForeignWrites(): void {
    this.#dataVersion ??= this.#client.prepare("PRAGMA data_version").raw(true);
    const [version] = this.#dataVersion.get() as unknown as [number];
    if (version !== this.#cacheVersion) this.#cache.clear();
    this.#cacheVersion = version;
    // This check takes a tenth of the time of a request. One check per turn of the event loop serves all its requests.
    this.#isCacheCurrent = true;
    setImmediate(() => {
      this.#isCacheCurrent = false;
    });
  }

  /**
   * Resolves when the checkpoint that was due is done. Work of many transactions waits for it between two of them: commits
   * that leave the thread behind checkpoint the log themselves, which blocks the event loop.
   */
  get checkpointed(): Promise<unknown> {
    return this.#checkpointed;
  }

  #onWrite(changes: number): void {
    this.#cache.clear();
    this.#writesCount += 1 + changes / ROWS_OF_WRITE;
    if (this.#writesCount < CHECKPOINT_WRITES_COUNT) return;
    this.#writesCount = 0;
    // When this fails, the next checkpoint does the work. In the end, a commit bounds the log.
    const checkpoint = this.scans.upkeep({ sql: "PRAGMA wal_checkpoint(PASSIVE)", params: [] });
    this.#checkpointed = checkpoint.catch(() => undefined);
  }

  /**
   * Removes deleted values from the write-ahead log, too, about a minute later. The file itself never has
   * them (`secure_delete`), but the log contains older states of its pages until they are overwritten.
   */
  eraseSoon(): void {
    this.#erasing ??= setTimeout(() => void this.#erase(), ERASE_MS);
    this.#erasing.unref();
  }

  async #erase(): Promise<void> {
    try {
      // The first one copies and syncs while others write, so that the second one, which blocks writers, has little to do.
      await this.scans.upkeep({ sql: "PRAGMA wal_checkpoint(PASSIVE)", params: [] });
      const [[busy] = []] = await this.scans.alone({ sql: "PRAGMA wal_checkpoint(TRUNCATE)", params: [] });
      this.#erasing = null;
      if (busy !== 0) this.eraseSoon();
    } catch {
      // Expected: the database was closed, which erases the log, or its disk fails. The next end of an operation tries again.
      this.#erasing = null;
    }
  }

  /** Closes the connection; checkpoints the log before that, unless it is a daemon's. Idempotent. */
  [Symbol.dispose](): void {
    if (!this.#client.open) return;
    clearTimeout(this.#erasing ?? undefined);
    this.scans[Symbol.dispose]();
    this.#prepared.clear();
    this.#dataVersion = null;
    this.#statements.clear();
    // It blocks writers while it copies and syncs.
    if (!this.#sharesFile) this.#client.exec("PRAGMA wal_checkpoint(TRUNCATE)");
    this.#client.close();
  }
}

/**
 * A placeholder for each column of a table, to insert rows by a statement. Columns whose value may be null and is stored as
 * JSON need another one: their encoder makes a text of null.
 */
export function placeholders<T extends SQLiteTable>(table: T): { [Column in keyof T["_"]["columns"]]: Placeholder } {
  const names = Object.keys(getTableColumns(table));
  return Object.fromEntries(names.map((name) => [name, sql.placeholder(name)])) as never;
}

/** Tests whether `column` is one of `values`, which may be more than the parameters that a statement can have. */
export function isOneOf(column: AnySQLiteColumn, values: readonly string[]): SQL {
  return sql`${column} in (select value from json_each(${JSON.stringify(values)}))`;
}

/**
 * Opens the database at `path` and creates it when it does not exist. By default applies missing migrations.
 * @param options `sharesFile`: a daemon may use the database meanwhile. The connection waits long for the daemon's writes, and
 * delays them no longer than its own writes take
 * @throws SchemaTooNewError when a newer version of the program wrote the file
 * @throws SchemaTooOldError when the file lacks migrations and `schema` is `require`
 */
export function openDatabase(path: string, schema: SchemaPolicy = "migrate", options: DatabaseOptions = {}): Database {
  const client = new Libsql(path, { timeout: options.sharesFile === true ? BESIDE_BUSY_TIMEOUT_MS : BUSY_TIMEOUT_MS });
  try {
    // SQLite gives the log and its index the mode of this file.
    chmodSync(path, 0o600);
    client.exec("PRAGMA journal_mode = WAL");
    // An acknowledged write must survive a power failure; NORMAL would only keep the file consistent.
    client.exec("PRAGMA synchronous = FULL");
    // Requests contain secrets (stdin, environment) that must be erased when their operation ends.
    client.exec("PRAGMA secure_delete = ON");
    client.exec(`PRAGMA journal_size_limit = ${JOURNAL_BYTES_MAX}`);
    client.exec(`PRAGMA wal_autocheckpoint = ${CHECKPOINT_PAGES_MAX}`);
    client.exec("PRAGMA foreign_keys = OFF");
    if (schema === "migrate") migrate(client);
    else if (missingMigrations(client).length > 0 && schema === "require") {
      throw new SchemaTooOldError("the database was written by an older version");
    }
    client.exec("PRAGMA foreign_keys = ON");
  } catch (error) {
    client.close();
    throw error;
  }
  return new Database(client, path, options);
}
