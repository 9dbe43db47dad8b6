import type Libsql from "libsql";
import { inTransaction } from "./drizzle-client.ts";
import initSql from "./migrations/0000_init.sql" with { type: "text" };
import webSessionsSql from "./migrations/0001_web_sessions.sql" with { type: "text" };
import sandboxesSql from "./migrations/0002_sandboxes.sql" with { type: "text" };
import e2bSql from "./migrations/0003_e2b.sql" with { type: "text" };
import forksSql from "./migrations/0004_forks.sql" with { type: "text" };
import journal from "./migrations/meta/_journal.json" with { type: "json" };

/** One step of the schema; the executable holds all of them. */
export interface Migration {
  readonly name: string;
  /** `milliseconds` since the epoch; strictly increasing, a step is applied when it is newer than the last one */
  readonly createdAt: number;
  readonly statements: readonly string[];
}

/** Text imports cannot be computed: a new file of drizzle-kit gets its line here. */
const FILES: Readonly<Record<string, string>> = {
  "0000_init": initSql,
  "0001_web_sessions": webSessionsSql,
  "0002_sandboxes": sandboxesSql,
  "0003_e2b": e2bSql,
  "0004_forks": forksSql,
};

/** Every migration, oldest first. */
export const MIGRATIONS: readonly Migration[] = journal.entries.map(({ tag, when }) => {
  const file = FILES[tag];
  if (file === undefined) throw new Error(`migration ${tag} is in the journal but not in migrations.ts`);
  return { name: tag, createdAt: when, statements: file.split("--> statement-breakpoint") };
});

/** A newer version of the program wrote the file: its newest migration is unknown here. */
export class SchemaTooNewError extends Error {
  override readonly name = "SchemaTooNewError";
}

/**
 * Applies missing migrations in one transaction. Drizzle's own function reads the state before it takes the write lock,
 * so two processes that open a new file at once would both apply everything.
 */
export function migrate(client: Libsql.Database, migrations = MIGRATIONS): void {
  inTransaction(client, () => {
    client.exec("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY NOT NULL, created_at INTEGER NOT NULL)");
    const missing = missingMigrations(client, migrations);
    // The check below reads every table, so it runs only after a change of the schema.
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

/** Migrations that the file lacks. @throws SchemaTooNewError */
export function missingMigrations(client: Libsql.Database, migrations = MIGRATIONS): readonly Migration[] {
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
