import { index, integer, primaryKey, sqliteTable, text, uniqueIndex } from "drizzle-orm/sqlite-core";
import type { AccountId, FileId, ImageId, SandboxId } from "../../domain/ids.ts";
import { accounts, files } from "../schema.ts";

export const BUILD_STATUSES = ["waiting", "building", "ready", "error"] as const;

/** Settings of a build for the sandboxes that begin on its image. */
export interface TemplateConfig {
  /** name of the user of their processes; null: the default */
  readonly user: string | null;
  /** their working directory; null: the home of the user */
  readonly cwd: string | null;
  readonly env: Readonly<Record<string, string>>;
  /** shell text that runs in each of their machines; null: none */
  readonly startCmd: string | null;
  /** shell text that succeeds when `startCmd` is ready; null: none */
  readonly readyCmd: string | null;
  readonly vcpus?: number | undefined;
  readonly memoryBytes?: number | undefined;
}

/** Why a build failed. */
export interface BuildReason {
  readonly message: string;
  readonly step?: string | undefined;
  readonly [field: string]: unknown;
}

/** Named chains of images that sandboxes begin with. */
export const templates = sqliteTable(
  "templates",
  {
    /** 20 characters of a-z and 0-9 */
    id: text("id").primaryKey(),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    name: text("name").notNull(),
    public: integer("public", { mode: "boolean" }).notNull(),
    createdAt: integer("created_at").notNull(),
    updatedAt: integer("updated_at").notNull(),
    spawnCount: integer("spawn_count").notNull().default(0),
    lastSpawnedAt: integer("last_spawned_at"),
    /** the sandbox whose files it has, which may be gone; null: it is built by steps */
    sandboxId: text("sandbox_id").$type<SandboxId>(),
  },
  (table) => [uniqueIndex("templates_name").on(table.accountId, table.name)],
);

export const templateBuilds = sqliteTable(
  "template_builds",
  {
    /** a UUID */
    id: text("id").primaryKey(),
    templateId: text("template_id")
      .notNull()
      .references(() => templates.id, { onDelete: "cascade" }),
    status: text("status", { enum: BUILD_STATUSES }).notNull(),
    tags: text("tags", { mode: "json" }).$type<readonly string[]>().notNull(),
    /** null until it is ready; the image may have been deleted since */
    imageId: text("image_id").$type<ImageId>(),
    config: text("config", { mode: "json" }).$type<TemplateConfig>().notNull(),
    /** null: it has not failed */
    reason: text("reason", { mode: "json" }).$type<BuildReason>(),
    /** bounded */
    log: text("log", { mode: "json" }).$type<readonly object[]>().notNull(),
    createdAt: integer("created_at").notNull(),
    finishedAt: integer("finished_at"),
  },
  (table) => [
    index("template_builds_by_template").on(table.templateId, table.createdAt),
    index("template_builds_image").on(table.imageId),
    index("template_builds_live").on(table.status, table.createdAt),
  ],
);

const templateTags = sqliteTable(
  "template_tags",
  {
    templateId: text("template_id")
      .notNull()
      .references(() => templates.id, { onDelete: "cascade" }),
    tag: text("tag").notNull(),
    buildId: text("build_id")
      .notNull()
      .references(() => templateBuilds.id, { onDelete: "cascade" }),
    createdAt: integer("created_at").notNull(),
  },
  (table) => [primaryKey({ columns: [table.templateId, table.tag] }), index("template_tags_build").on(table.buildId)],
);

/** Images after steps of builds, which later builds with the same steps use again. */
const buildSteps = sqliteTable(
  "build_steps",
  {
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    /** a hash of everything that the image depends on, in hexadecimal */
    key: text("key").notNull(),
    /** it may have been deleted since */
    imageId: text("image_id").$type<ImageId>().notNull(),
    usedAt: integer("used_at").notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.accountId, table.key] }),
    index("build_steps_by_use").on(table.usedAt),
    index("build_steps_image").on(table.imageId),
  ],
);

/** Archives that clients uploaded for steps of builds, by the clients' hashes of what is in them. */
const buildFiles = sqliteTable(
  "build_files",
  {
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    /** 64 hexadecimal digits */
    hash: text("hash").notNull(),
    fileId: text("file_id")
      .$type<FileId>()
      .notNull()
      .references(() => files.id, { onDelete: "cascade" }),
    createdAt: integer("created_at").notNull(),
  },
  (table) => [primaryKey({ columns: [table.accountId, table.hash] }), index("build_files_file").on(table.fileId)],
);

// drizzle-kit reads the tables that a schema exports.
export { buildFiles, buildSteps, templateTags };
