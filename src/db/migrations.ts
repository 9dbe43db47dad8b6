import initSql from "./migrations/0000_init.sql" with { type: "text" };
import historySql from "./migrations/0001_history.sql" with { type: "text" };
import mergedLayersSql from "./migrations/0002_merged_layers.sql" with { type: "text" };
import historyOrderSql from "./migrations/0003_history_order.sql" with { type: "text" };
import requestsSql from "./migrations/0004_requests.sql" with { type: "text" };
import baseProofsSql from "./migrations/0005_base_proofs.sql" with { type: "text" };
import networkSql from "./migrations/0006_network.sql" with { type: "text" };
import tagsAndVariablesSql from "./migrations/0007_tags_and_variables.sql" with { type: "text" };
import imagesOfLayersSql from "./migrations/0008_images_of_layers.sql" with { type: "text" };
import webSessionsSql from "./migrations/0009_web_sessions.sql" with { type: "text" };
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
  "0001_history": historySql,
  "0002_merged_layers": mergedLayersSql,
  "0003_history_order": historyOrderSql,
  "0004_requests": requestsSql,
  "0005_base_proofs": baseProofsSql,
  "0006_network": networkSql,
  "0007_tags_and_variables": tagsAndVariablesSql,
  "0008_images_of_layers": imagesOfLayersSql,
  "0009_web_sessions": webSessionsSql,
};

/** Every migration, oldest first. */
export const MIGRATIONS: readonly Migration[] = journal.entries.map(({ tag, when }) => {
  const file = FILES[tag];
  if (file === undefined) throw new Error(`migration ${tag} is in the journal but not in migrations.ts`);
  return { name: tag, createdAt: when, statements: file.split("--> statement-breakpoint") };
});
