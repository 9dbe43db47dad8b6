import { type Static, Type } from "@sinclair/typebox";
import { ACCOUNT_PATTERN } from "../../../domain/ids.ts";
import { SCOPES, TOKEN_STATES } from "../../../domain/scope.ts";
import { Limit, Offset, oneOf } from "../../wire-fields.ts";
import { Timestamp, Uuid } from "./common.ts";

export const TTL_SECONDS_DEFAULT = 2_592_000;
const TTL_SECONDS_MAX = 315_360_000;
const GRANTS = [...SCOPES, "*"] as const;

const Count = (description: string) => Type.Integer({ minimum: 0, description });
const Bytes = (description: string) => Type.Integer({ minimum: 0, description: `${description}, in bytes` });
const Account = Type.String({ description: "name of the account" });

export const Token = Type.Object({
  uuid: Uuid,
  account: Account,
  scopes: Type.Array(Type.String(), { description: "what it allows; `*` stands for all scopes but `operator`" }),
  issued_at: Timestamp,
  expires_at: Timestamp,
  state: oneOf(TOKEN_STATES, { description: "whether it can be used" }),
  current: Type.Boolean({ description: "true for the token of this request" }),
});
export type Token = Static<typeof Token>;

export const IssuedToken = Type.Object({
  ...Token.properties,
  token: Type.String({ description: "the token itself, which is shown this once and stored nowhere" }),
});
export type IssuedToken = Static<typeof IssuedToken>;

export const TokenRequest = Type.Object({
  account: Type.String({
    pattern: ACCOUNT_PATTERN,
    description: "account of the token, which owns all objects that the token makes; it may be new",
    error: "account must be 1 to 128 letters, digits and . _ @ -, a letter or digit first",
  }),
  scopes: Type.Array(oneOf(GRANTS), {
    minItems: 1,
    maxItems: GRANTS.length,
    description: "what it allows; `*` stands for all scopes but `operator`",
    error: `scopes must be a list of ${GRANTS.join(", ")}`,
  }),
  ttl: Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: TTL_SECONDS_MAX,
      default: TTL_SECONDS_DEFAULT,
      description: "validity, in seconds",
      error: `ttl must be an integer from 1 to ${TTL_SECONDS_MAX}`,
    }),
  ),
});
export type TokenRequest = Static<typeof TokenRequest>;

/** Query of the tokens. */
export const TokensQuery = Type.Object({
  limit: Type.Optional(Limit),
  offset: Type.Optional(Offset),
  account: Type.Optional(Type.String({ description: "only tokens of this account" })),
  state: Type.Optional(
    oneOf(TOKEN_STATES, {
      description: "only tokens in this state",
      error: `state must be one of ${TOKEN_STATES.join(", ")}`,
    }),
  ),
});

/** Query of figures by account or image. */
export const FiguresQuery = Type.Object({ limit: Type.Optional(Limit) });

const Budget = (what: string) =>
  Type.Object({ budget: Type.Number({ description: `${what} for all machines and imports` }), used: Type.Number() });

export const Load = Type.Object({
  memory_bytes: Budget("memory"),
  vcpus: Budget("virtual CPUs, those of a sandbox that runs counted as an eighth,"),
  machines: Type.Object({
    in_use: Count("virtual machines that run something"),
    waiting: Count("virtual machines in the pool"),
    ready: Count("those of the pool that are fully prepared"),
    pool_size: Count("how many should wait"),
  }),
  accounts: Type.Array(
    Type.Object({
      account: Account,
      executing: Count("operations that run"),
      pending: Count("operations that wait"),
      oldest_pending_at: Type.Optional(Timestamp),
      memory_bytes: Bytes("what they hold of the memory budget"),
      vcpus: Type.Number({ description: "what they hold of the budget of virtual CPUs" }),
    }),
    { description: "accounts with operations that have not ended, those that hold most first" },
  ),
});
export type Load = Static<typeof Load>;

export const Space = Type.Object({
  disk: Type.Object({
    total_bytes: Bytes("size of the data directory's file system"),
    free_bytes: Bytes("free space there"),
    reserve_bytes: Bytes("free space below which no new work is accepted"),
    files: Type.Optional(
      Type.Object(
        { total: Count("all"), free: Count("free ones"), reserve: Count("those that must remain") },
        { description: "inodes; absent when their number has no limit" },
      ),
    ),
  }),
  stored: Type.Object({
    images: Count("images of all accounts"),
    layers: Count("layers of all images"),
    layer_bytes: Bytes("what they have allocated"),
    merged_layers: Count("layers that stand in for long chains of others"),
    merged_layer_bytes: Bytes("what they have allocated"),
    files: Count("stored contents of uploaded files"),
    file_bytes: Bytes("what they have allocated"),
  }),
  accounts: Type.Array(
    Type.Object({
      account: Account,
      images: Count("its images"),
      layer_bytes: Bytes(
        "layers that its images added; those that accounts share count for each, those left of deleted images for none",
      ),
      merged_layer_bytes: Bytes("its merged layers"),
      files: Count("its uploaded files"),
      file_bytes: Bytes("their contents"),
    }),
    { description: "those with the most bytes first" },
  ),
  images: Type.Array(
    Type.Object({
      uuid: Uuid,
      account: Account,
      tag: Type.Optional(Type.String()),
      size_bytes: Bytes("what the image added to its parent"),
      created_at: Timestamp,
    }),
    { description: "images of all accounts, the largest first" },
  ),
});
export type Space = Static<typeof Space>;

export const Collection = Type.Object({
  images: Count("expired images"),
  layers: Count("layers that no image needs"),
  layer_bytes: Bytes("what these layers have allocated"),
  files: Count("expired uploaded files"),
  file_bytes: Bytes("contents that no file needs"),
  memory_images: Count("expired memory of paused sandboxes, whose files stay"),
  memory_image_bytes: Bytes("what that memory has allocated"),
  bytes: Bytes("all of it"),
  images_memory_ttl: Type.Number({ description: "`images.memory_ttl` in seconds" }),
  images_untagged_ttl: Type.Optional(
    Type.Number({ description: "`images.untagged_ttl` in seconds; absent: images never expire" }),
  ),
  files_ttl: Type.Optional(Type.Number({ description: "`files.ttl` in seconds; absent: files never expire" })),
});
export type Collection = Static<typeof Collection>;

export const Finding = Type.Object({
  name: Type.String({ description: "what was checked" }),
  state: oneOf(["ok", "note", "problem"], {
    description: "note: it works, with a restriction; problem: it does not work",
  }),
  summary: Type.String({ description: "what the check found" }),
  meaning: Type.String({ description: "what it is for, or what its absence means" }),
  fix: Type.Optional(Type.String({ description: "a command for a terminal of the host" })),
});

export const HealthReport = Type.Object({
  healthy: Type.Boolean({ description: "false when there is a problem" }),
  checked_at: Timestamp,
  findings: Type.Array(Finding),
});
export type HealthReport = Static<typeof HealthReport>;
