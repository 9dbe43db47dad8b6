import type { BaseSQLiteDatabase } from "drizzle-orm/sqlite-core";
import type Libsql from "libsql";

export interface RunResult {
  readonly changes: number;
}

type OnWrite = (changes: number) => void;

export interface ClientEvents {
  readonly onWrite: OnWrite;
  /** a statement was executed with a long text, which it holds: every owner of the statement must drop it */
  readonly onLongParameter: () => void;
}

/** Statements that cannot write. */
const SELECT_STATEMENT = /^\s*select\b/i;
/** Limit of prepared statements. Preparing a statement takes longer than executing most of them. */
const STATEMENTS_COUNT_MAX = 500;
/** Statements executed with a longer text are not cached, in `characters`: a statement holds its last parameters. */
const PARAMETER_LENGTH_MAX = 65_536;

/** Drizzle's query builder; also the type of a transaction's handle. */
export type Orm = BaseSQLiteDatabase<"sync", RunResult>;

/**
 * The client in the form that drizzle's session uses. Keeps prepared statements by their text, and calls `onWrite`
 * whenever cached reads may be outdated, with the number of rows that were changed.
 */
export function drizzleClient(
  client: Libsql.Database,
  statements: Map<string, Libsql.Statement>,
  { onWrite, onLongParameter }: ClientEvents,
) {
  return {
    prepare(sql: string) {
      const cached = statements.get(sql);
      if (cached !== undefined) return cached;
      const statement = client.prepare(sql);
      observeExecution(statement, (params) => {
        if (params.some((param) => typeof param === "string" && param.length > PARAMETER_LENGTH_MAX)) {
          statements.delete(sql);
          onLongParameter();
        }
      });
      if (!SELECT_STATEMENT.test(sql)) observeWrites(statement, onWrite);
      makeRaw(statement);
      if (statements.size >= STATEMENTS_COUNT_MAX) statements.clear();
      statements.set(sql, statement);
      return statement;
    },
    transaction(work: (tx: Orm) => unknown) {
      return {
        immediate(tx: Orm): unknown {
          // A rollback outdates the reads that were cached inside the transaction.
          using _outdated = { [Symbol.dispose]: () => onWrite(0) };
          return inTransaction(client, () => work(tx));
        },
      };
    },
  };
}

/**
 * Runs `work` in one write transaction. Unlike the client's own helper, it does not roll back a transaction that SQLite
 * has already rolled back, as it does on a full disk: that second error would hide the first.
 */
export function inTransaction<T>(client: Libsql.Database, work: () => T): T {
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
 * Makes a statement return raw rows permanently. The session requests that before every execution, which costs as much
 * as a look-up by key.
 */
function makeRaw(statement: Libsql.Statement): void {
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

function observeWrites(statement: Libsql.Statement, onWrite: OnWrite): void {
  for (const name of EXECUTIONS) {
    const execute = (statement[name] as (...params: unknown[]) => unknown).bind(statement);
    statement[name] = ((...params: unknown[]) => {
      let changes = 0;
      using _outdated = { [Symbol.dispose]: () => onWrite(changes) };
      const result = execute(...params);
      if (name === "run") changes = (result as RunResult).changes;
      return result;
    }) as never;
  }
}
