import { index, integer, primaryKey, sqliteTable, text } from "drizzle-orm/sqlite-core";
import type { AccountId, SandboxId } from "../../domain/ids.ts";
import { sandboxes } from "../sandboxes/schema.ts";
import { accounts } from "../schema.ts";

/** Network of a sandbox as its request said it. */
export interface RecordedNetwork {
  readonly allowOut: readonly string[];
  readonly denyOut: readonly string[];
  /** false: ports need the traffic token of the sandbox */
  readonly allowPublicTraffic: boolean;
  /** `Host` of requests to ports; null: as it came */
  readonly maskRequestHost: string | null;
  /** ports whose programs speak TLS */
  readonly httpsPorts?: readonly number[];
}

/** The program of the template that succeeds when a machine of a sandbox is ready. */
export interface RecordedReadiness {
  /** shell text */
  readonly command: string;
  /** name of the user; null: root */
  readonly user: string | null;
  /** absolute; null: the default of processes */
  readonly cwd: string | null;
}

/** Facts that requests of this dialect gave about sandboxes, and that the sandboxes themselves do not have. */
export const sandboxRecords = sqliteTable("sandbox_records", {
  sandboxId: text("sandbox_id")
    .$type<SandboxId>()
    .primaryKey()
    .references(() => sandboxes.id, { onDelete: "cascade" }),
  templateId: text("template_id").notNull(),
  /** name of the template; null: it has none */
  alias: text("alias"),
  /** null: not a build of a template */
  buildId: text("build_id"),
  /** the key that signs the tokens of the sandbox */
  keyId: text("key_id").notNull(),
  /** of the request that made it */
  timeoutSeconds: integer("timeout_seconds").notNull(),
  /** whether its deadline should keep its memory */
  autoPauseMemory: integer("auto_pause_memory", { mode: "boolean" }).notNull(),
  /** whether its last pause asked for its files only */
  pausedFilesOnly: integer("paused_files_only", { mode: "boolean" }).notNull(),
  /** null: not in the request */
  allowInternetAccess: integer("allow_internet_access", { mode: "boolean" }),
  /** null: not in the request */
  network: text("network", { mode: "json" }).$type<RecordedNetwork>(),
  /** null: it is ready when it runs */
  readiness: text("readiness", { mode: "json" }).$type<RecordedReadiness>(),
});

/** Requests for sandboxes that clients may repeat: a repeated one gets the same sandbox. */
export const creations = sqliteTable(
  "e2b_creations",
  {
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    key: text("key").notNull(),
    /** SHA-256 of the request, in hexadecimal */
    bodyHash: text("body_hash").notNull(),
    sandboxId: text("sandbox_id").$type<SandboxId>().notNull(),
    createdAt: integer("created_at").notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.accountId, table.key] }),
    index("e2b_creations_by_time").on(table.createdAt),
  ],
);
