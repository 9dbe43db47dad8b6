import initSql from "./migrations/0000_init.sql" with { type: "text" };
import webSessionsSql from "./migrations/0001_web_sessions.sql" with { type: "text" };
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
};

/** Every migration, oldest first. */
export const MIGRATIONS: readonly Migration[] = journal.entries.map(({ tag, when }) => {
  const file = FILES[tag];
  if (file === undefined) throw new Error(`migration ${tag} is in the journal but not in migrations.ts`);
  return { name: tag, createdAt: when, statements: file.split("--> statement-breakpoint") };
});
