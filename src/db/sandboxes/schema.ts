import { sql } from "drizzle-orm";
import { check, index, integer, primaryKey, sqliteTable, text, uniqueIndex } from "drizzle-orm/sqlite-core";
import type { ErrorBody } from "../../domain/errors.ts";
import type { AccountId, ImageId, MemoryImageId, OperationId, SandboxId } from "../../domain/ids.ts";
import type { NetworkRequest } from "../../domain/network.ts";
import { SANDBOX_STATES, SAVE_REASONS, type SaveReason, TIMEOUT_ACTIONS } from "../../domain/sandbox.ts";
import type { CheckedCommand } from "../../domain/spawn.ts";
import { accounts, images, operations, type RequestedResources } from "../schema.ts";

/** How the files of an instance are saved at its end, and the rest of the request that ended it. */
export interface StoredEnding {
  readonly reason: SaveReason;
  readonly tag: string | null;
  /** null: nothing */
  readonly then:
    | { readonly request: "end" }
    | { readonly request: "rollback"; readonly target: { readonly imageId: ImageId; readonly seq?: number } }
    | null;
}

/** Branches made live: each has a head, and an instance while it runs. */
export const sandboxes = sqliteTable(
  "sandboxes",
  {
    id: text("id").$type<SandboxId>().primaryKey(),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    name: text("name").notNull(),
    /** where it began; null only after its end, when the image was deleted */
    imageId: text("image_id")
      .$type<ImageId>()
      .references(() => images.id, { onDelete: "set null" }),
    /** the last saved state; null only after its end, when the image was deleted */
    headId: text("head_id")
      .$type<ImageId>()
      .references(() => images.id, { onDelete: "set null" }),
    /** number of that state in `sandbox_states` */
    headSeq: integer("head_seq").notNull(),
    state: text("state", { enum: SANDBOX_STATES }).notNull(),
    /** the sandbox that it was forked from, which may be deleted by now; null: it was not forked */
    parentId: text("parent_id").$type<SandboxId>(),
    /** the last event of the parent before a fork with memory; null: it has only the files of a parent, or none */
    forkedAtEvent: integer("forked_at_event"),
    /** the operation of its present instance; null when it has none */
    operationId: text("operation_id")
      .$type<OperationId>()
      .references(() => operations.id, { onDelete: "set null" }),
    /** its life after each resume */
    timeoutMs: integer("timeout_ms").notNull(),
    /** null while it does not live */
    endsAt: integer("ends_at"),
    idleTimeoutMs: integer("idle_timeout_ms"),
    onTimeout: text("on_timeout", { enum: TIMEOUT_ACTIONS }).notNull(),
    autoResume: integer("auto_resume", { mode: "boolean" }).notNull(),
    /** whether its pauses without a request keep its memory */
    pauseMemory: integer("pause_memory", { mode: "boolean" }).notNull().default(false),
    /** how its instance ends, and what follows, while a request waits for that; null: it pauses, or none does */
    ending: text("ending", { mode: "json" }).$type<StoredEnding>(),
    /** when it was last used, within a part of its idle time; null: not in its present life, or it has no idle time */
    usedAt: integer("used_at"),
    /** deleted when it ends */
    env: text("env", { mode: "json" }).$type<Readonly<Record<string, string>>>().notNull(),
    /** names of the variables, which stay */
    envNames: text("env_names", { mode: "json" }).$type<readonly string[]>().notNull(),
    cwd: text("cwd"),
    /** user of its processes: a name, or `uid` or `uid:gid`; null: root */
    user: text("user"),
    /** a process that each of its machines begins with, without the variables of the sandbox; deleted when it ends */
    boot: text("boot", { mode: "json" }).$type<CheckedCommand>(),
    /** whether its end deletes the files that its pauses saved */
    discardsPauses: integer("discards_pauses", { mode: "boolean" }).notNull().default(false),
    network: text("network", { mode: "json" }).$type<NetworkRequest>(),
    resources: text("resources", { mode: "json" }).$type<RequestedResources>().notNull(),
    metadata: text("metadata", { mode: "json" }).$type<Readonly<Record<string, string>>>().notNull(),
    publicPorts: text("public_ports", { mode: "json" }).$type<readonly number[]>().notNull(),
    /** numbers of processes up to this one may be in use */
    spidLast: integer("spid_last").notNull(),
    createdAt: integer("created_at").notNull(),
    /** when its state changed */
    stateAt: integer("state_at").notNull(),
    endedAt: integer("ended_at"),
    /** why it failed, or could not resume; null in other states */
    error: text("error", { mode: "json" }).$type<ErrorBody>(),
  },
  (table) => [
    uniqueIndex("sandboxes_name").on(table.accountId, table.name).where(sql`${table.endedAt} is null`),
    index("sandboxes_by_time").on(table.accountId, table.createdAt, table.id),
    index("sandboxes_live").on(table.accountId, table.createdAt, table.id).where(sql`${table.endedAt} is null`),
    index("sandboxes_by_deadline").on(table.endsAt).where(sql`${table.endsAt} is not null`),
    index("sandboxes_ended").on(table.endedAt).where(sql`${table.endedAt} is not null`),
    index("sandboxes_image").on(table.imageId),
    index("sandboxes_head").on(table.headId),
    index("sandboxes_operation").on(table.operationId),
    check("sandboxes_ended_when_ended", sql`(${table.endedAt} is null) = (${table.state} <> 'ended')`),
  ],
);

/** Saved states of sandboxes. */
export const sandboxStates = sqliteTable(
  "sandbox_states",
  {
    sandboxId: text("sandbox_id")
      .$type<SandboxId>()
      .notNull()
      .references(() => sandboxes.id, { onDelete: "cascade" }),
    /** from 0, in the order in which they were saved */
    seq: integer("seq").notNull(),
    imageId: text("image_id")
      .$type<ImageId>()
      .notNull()
      .references(() => images.id, { onDelete: "cascade" }),
    /** the state before it; null for the first one that is kept */
    parentSeq: integer("parent_seq"),
    reason: text("reason", { enum: SAVE_REASONS }).notNull(),
    createdAt: integer("created_at").notNull(),
  },
  (table) => [
    primaryKey({ columns: [table.sandboxId, table.seq] }),
    index("sandbox_states_image").on(table.imageId),
    index("sandbox_states_parent").on(table.sandboxId, table.parentSeq),
  ],
);

/** Memory of paused sandboxes, at most one image of each. Its files are in a directory of their own. */
export const memoryImages = sqliteTable(
  "memory_images",
  {
    /** name of its directory */
    id: text("id").$type<MemoryImageId>().primaryKey(),
    sandboxId: text("sandbox_id")
      .$type<SandboxId>()
      .notNull()
      .references(() => sandboxes.id, { onDelete: "cascade" }),
    accountId: text("account_id")
      .$type<AccountId>()
      .notNull()
      .references(() => accounts.id),
    /** the image that its machine began with, whose layers lie below its scratch */
    imageId: text("image_id")
      .$type<ImageId>()
      .notNull()
      .references(() => images.id),
    /** allocated on the host's disk */
    sizeBytes: integer("size_bytes").notNull(),
    /** host memory that it takes while a machine runs from it, in addition to the machine's own */
    memoryBytes: integer("memory_bytes").notNull(),
    createdAt: integer("created_at").notNull(),
    /** why it cannot be resumed; null: no reason is known */
    problem: text("problem"),
  },
  (table) => [
    uniqueIndex("memory_images_sandbox").on(table.sandboxId),
    index("memory_images_account").on(table.accountId),
    index("memory_images_image").on(table.imageId),
    index("memory_images_by_time").on(table.createdAt),
  ],
);
