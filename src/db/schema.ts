import { sql } from "drizzle-orm";
import {
  type AnySQLiteColumn,
  check,
  index,
  integer,
  primaryKey,
  sqliteTable,
  text,
  uniqueIndex,
} from "drizzle-orm/sqlite-core";
import type { ErrorBody } from "../domain/errors.ts";
import type { AccountId, FileId, ImageId, LayerId, OperationId } from "../domain/ids.ts";
import type { NetworkAudit } from "../domain/network.ts";
import { OPERATION_KINDS, OPERATION_STATUSES } from "../domain/operation.ts";

/** File system of a layer's disk. */
const LAYER_FORMATS = ["erofs", "ext4"] as const;
export type LayerFormat = (typeof LAYER_FORMATS)[number];

/** In all tables, times are integers in `milliseconds` since the epoch, and sizes are in `bytes`. */
export const accounts = sqliteTable("accounts", {
  id: text("id").$type<AccountId>().primaryKey(),
  createdAt: integer("created_at").notNull(),
});

export const layers = sqliteTable(
  "layers",
  {
    id: text("id").$type<LayerId>().primaryKey(),
    /** the next lower layer; null for a base */
    parentId: text("parent_id")
      .$type<LayerId>()
      .references((): AnySQLiteColumn => layers.id),
    format: text("format", { enum: LAYER_FORMATS }).notNull(),
    /** verified origin of a base: manifest digest, platform and recipe of the tools; null for a layer that is not shared */
    baseKey: text("base_key"),
    /** allocated on the host's disk */
    sizeBytes: integer("size_bytes").notNull(),
    /** virtual size of the raw disk */
    diskBytes: integer("disk_bytes").notNull(),
    entryCount: integer("entry_count").notNull(),
    createdAt: integer("created_at").notNull(),
  },
  (table) => [
    uniqueIndex("layers_base_key").on(table.baseKey).where(sql`${table.baseKey} is not null`),
    index("layers_parent").on(table.parentId),
  ],
);

/**
 * Proof that an import of the account fetched the manifest and all blobs of a base, and verified them by their digests. An
 * account without a proof may not use the base: every caller that knows a digest could put it into an index.
 */
export const baseProofs = sqliteTable(
  "base_proofs",
  {
    layerId: text("layer_id")
      .$type<LayerId>()
      .notNull()
      .references(() => layers.id, { onDelete: "cascade" }),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    createdAt: integer("created_at").notNull(),
  },
  (table) => [primaryKey({ columns: [table.layerId, table.accountId] })],
);

export const images = sqliteTable(
  "images",
  {
    id: text("id").$type<ImageId>().primaryKey(),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    /** the image that the operation started from, while it exists; `history` keeps it longer */
    parentId: text("parent_id")
      .$type<ImageId>()
      .references((): AnySQLiteColumn => images.id, { onDelete: "set null" }),
    operationId: text("operation_id")
      .$type<OperationId>()
      .references((): AnySQLiteColumn => operations.id, { onDelete: "set null" }),
    /** top layer; the others follow from `layers.parent_id` */
    layerId: text("layer_id")
      .$type<LayerId>()
      .notNull()
      .references(() => layers.id),
    digest: text("digest"),
    /** size that the image added to its parent; 0 when it has the layer of its parent */
    sizeBytes: integer("size_bytes").notNull(),
    /** variables of the image, from its import or from runs that kept theirs; null: made before images had variables */
    variables: text("variables", { mode: "json" }).$type<Readonly<Record<string, string>>>(),
    /** working directory that a run kept as the image's own; null: none */
    cwd: text("cwd"),
    /** true when `tags` has a row for it, so that both listings have an index; written only together with that row */
    tagged: integer("tagged", { mode: "boolean" }).notNull().default(false),
    createdAt: integer("created_at").notNull(),
  },
  (table) => [
    index("images_by_time").on(table.accountId, table.createdAt, table.id),
    index("images_by_tagged").on(table.accountId, table.tagged, table.createdAt, table.id),
    index("images_untagged").on(table.tagged, table.createdAt),
    index("images_layer").on(table.layerId, table.accountId),
    index("images_parent").on(table.parentId),
    index("images_operation").on(table.operationId),
  ],
);

/**
 * Merged layers: each replaces a run of layers of a long chain. They are a cache. Their files lie next to those of layers,
 * and their ids have the same type. No image and no layer refers to them.
 */
export const mergedLayers = sqliteTable(
  "merged_layers",
  {
    id: text("id").$type<LayerId>().primaryKey(),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    /** the layer below the run */
    belowId: text("below_id")
      .$type<LayerId>()
      .notNull()
      .references(() => layers.id),
    /** the top layer of the run */
    topId: text("top_id")
      .$type<LayerId>()
      .notNull()
      .references(() => layers.id),
    sizeBytes: integer("size_bytes").notNull(),
    entryCount: integer("entry_count").notNull(),
    createdAt: integer("created_at").notNull(),
    lastUsedAt: integer("last_used_at").notNull(),
  },
  (table) => [
    uniqueIndex("merged_layers_run").on(table.topId, table.belowId, table.accountId),
    index("merged_layers_below").on(table.belowId),
    index("merged_layers_by_use").on(table.accountId, table.lastUsedAt),
  ],
);

/**
 * How images were made. A row stays while its image or one made from it exists, so that a lineage has no gaps where images
 * were deleted. It also outlives the row of its operation.
 */
export const history = sqliteTable(
  "history",
  {
    imageId: text("image_id").$type<ImageId>().primaryKey(),
    parentId: text("parent_id")
      .$type<ImageId>()
      .references((): AnySQLiteColumn => history.imageId),
    operationId: text("operation_id").$type<OperationId>().notNull(),
    /** argv of a run; null for an import */
    command: text("command", { mode: "json" }).$type<readonly string[]>(),
    /** true when `command` is only the beginning of the command */
    commandCut: integer("command_cut", { mode: "boolean" }).notNull().default(false),
    exitCode: integer("exit_code"),
    timedOut: integer("timed_out", { mode: "boolean" }).notNull().default(false),
    /** reference of an import; null for a run */
    source: text("source"),
    digest: text("digest"),
    /** size that the step added */
    sizeBytes: integer("size_bytes").notNull(),
    startedAt: integer("started_at"),
    createdAt: integer("created_at").notNull(),
    /** true when the command had a network */
    network: integer("network", { mode: "boolean" }).notNull().default(false),
  },
  (table) => [index("history_parent").on(table.parentId, table.createdAt, table.imageId)],
);

/** An image may have several tags. The one that was set last is the only one that the specified API shows. */
export const tags = sqliteTable(
  "tags",
  {
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    name: text("name").notNull(),
    imageId: text("image_id")
      .$type<ImageId>()
      .notNull()
      .references(() => images.id, { onDelete: "cascade" }),
    /** when the name was given to the image */
    setAt: integer("set_at").notNull().default(0),
    /** true for the tag of the image that was set last */
    isShown: integer("shown", { mode: "boolean" }).notNull().default(true),
  },
  (table) => [
    primaryKey({ columns: [table.accountId, table.name] }),
    index("tags_image").on(table.imageId, table.setAt),
    uniqueIndex("tags_shown").on(table.imageId).where(sql`${table.isShown} = 1`),
  ],
);

export const files = sqliteTable(
  "files",
  {
    id: text("id").$type<FileId>().primaryKey(),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    sha256: text("sha256").notNull(),
    sizeBytes: integer("size_bytes").notNull(),
    createdAt: integer("created_at").notNull(),
    /** when the content was uploaded last */
    uploadedAt: integer("uploaded_at").notNull().default(0),
    lastUsedAt: integer("last_used_at").notNull(),
  },
  (table) => [
    uniqueIndex("files_content").on(table.accountId, table.sha256),
    index("files_by_upload").on(table.accountId, table.uploadedAt, table.id),
    index("files_blob").on(table.sha256),
    index("files_last_used").on(table.lastUsedAt),
  ],
);

export const operations = sqliteTable(
  "operations",
  {
    id: text("id").$type<OperationId>().primaryKey(),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    kind: text("kind", { enum: OPERATION_KINDS }).notNull(),
    status: text("status", { enum: OPERATION_STATUSES }).notNull(),
    createdAt: integer("created_at").notNull(),
    startedAt: integer("started_at"),
    finishedAt: integer("finished_at"),
    cancelRequestedAt: integer("cancel_requested_at"),
    /** the image that an instance starts from */
    imageId: text("image_id")
      .$type<ImageId>()
      .references(() => images.id, { onDelete: "set null" }),
    /** the operation whose machine was forked for this one, which may be deleted by now; null: it was not forked */
    parentId: text("parent_id").$type<OperationId>(),
    /** the parent's last event before the fork, in the log of its processes; null: it was not forked */
    forkedAtEvent: integer("forked_at_event"),
    /** the request had secrets, which only the memory holds */
    hadCredentials: integer("had_credentials", { mode: "boolean" }).notNull().default(false),
    error: text("error", { mode: "json" }).$type<ErrorBody>(),
    result: text("result", { mode: "json" }).$type<Record<string, unknown>>(),
    /** audit of an instance's network; null while it has not ended, and when it had none */
    network: text("network", { mode: "json" }).$type<NetworkAudit>(),
  },
  (table) => [
    index("operations_by_time").on(table.accountId, table.createdAt, table.id),
    index("operations_by_status").on(table.accountId, table.status, table.createdAt, table.id),
    index("operations_by_kind").on(table.accountId, table.kind, table.createdAt, table.id),
    index("operations_by_status_kind").on(table.accountId, table.status, table.kind, table.createdAt, table.id),
    index("operations_live").on(table.status, table.createdAt, table.id).where(sql`${table.finishedAt} is null`),
    index("operations_finished").on(table.finishedAt).where(sql`${table.finishedAt} is not null`),
    index("operations_image").on(table.imageId, table.finishedAt, table.createdAt),
    check(
      "operations_finished_when_terminal",
      sql`(${table.finishedAt} is null) = (${table.status} in ('PENDING', 'EXECUTING'))`,
    ),
  ],
);

/** Resources of an operation's machine. */
export interface RequestedResources {
  readonly vcpus: number;
  readonly memoryBytes: number;
  readonly diskBytes: number;
  /** host memory of the kept memory that the machine continues from, in addition to its own */
  readonly memoryImageBytes?: number | undefined;
}

/** Requests without their secrets. */
export const operationRequests = sqliteTable("operation_requests", {
  operationId: text("operation_id")
    .$type<OperationId>()
    .primaryKey()
    .references(() => operations.id, { onDelete: "cascade" }),
  /** deleted when the operation ends if it is long */
  body: text("body", { mode: "json" }).$type<object>().notNull(),
  /** only for an instance; a column of its own, because the queue reads it without the body */
  resources: text("resources", { mode: "json" }).$type<RequestedResources>(),
  /** everything that waits for the operation, secrets and standard input included */
  sizeBytes: integer("size_bytes").notNull().default(0),
});

/** Secret parts of requests: environment and standard input. Deleted when the operation ends. */
export const operationSecrets = sqliteTable("operation_secrets", {
  operationId: text("operation_id")
    .$type<OperationId>()
    .primaryKey()
    .references(() => operations.id, { onDelete: "cascade" }),
  body: text("body", { mode: "json" }).$type<object>().notNull(),
});

/** Files that live operations need. */
export const operationFiles = sqliteTable(
  "operation_files",
  {
    operationId: text("operation_id")
      .$type<OperationId>()
      .notNull()
      .references(() => operations.id, { onDelete: "cascade" }),
    fileId: text("file_id")
      .$type<FileId>()
      .notNull()
      .references(() => files.id),
  },
  (table) => [
    primaryKey({ columns: [table.operationId, table.fileId] }),
    index("operation_files_file").on(table.fileId),
  ],
);

export const tokens = sqliteTable(
  "tokens",
  {
    jti: text("jti").primaryKey(),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    scopes: text("scopes", { mode: "json" }).$type<string[]>().notNull(),
    keyId: text("key_id").notNull(),
    issuedAt: integer("issued_at").notNull(),
    expiresAt: integer("expires_at").notNull(),
    revokedAt: integer("revoked_at"),
  },
  (table) => [index("tokens_by_account").on(table.accountId, table.issuedAt)],
);

/** People who are signed in on the page. A session has the rights of its token, and ends with it. */
export const webSessions = sqliteTable(
  "web_sessions",
  {
    /** SHA-256 of the secret in the cookie, in hexadecimal; the secret itself is not stored */
    id: text("id").primaryKey(),
    tokenId: text("token_id")
      .notNull()
      .references(() => tokens.jti, { onDelete: "cascade" }),
    createdAt: integer("created_at").notNull(),
    lastUsedAt: integer("last_used_at").notNull(),
  },
  (table) => [
    index("web_sessions_by_token").on(table.tokenId, table.lastUsedAt),
    index("web_sessions_by_use").on(table.lastUsedAt),
  ],
);
