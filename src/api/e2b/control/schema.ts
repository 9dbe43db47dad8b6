import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { METADATA_COUNT_MAX } from "../../../domain/sandbox.ts";
import { ANY_KEY } from "../../wire-fields.ts";

/** A field that may be absent or null, which means the same. */
export const optional = <Schema extends TSchema>(schema: Schema) => {
  const error = schema["error"] as string | undefined;
  return Type.Optional(Type.Union([schema, Type.Null()], error === undefined ? {} : { error }));
};

/** Any sum of them that a client sends is compared with the limits of the operator. */
const SECONDS_MAX = 1_000_000_000;
export const seconds = (name: string) =>
  Type.Integer({ minimum: -SECONDS_MAX, maximum: SECONDS_MAX, error: `${name} must be an integer` });
export const flag = (name: string) => Type.Boolean({ error: `${name} must be true or false` });
const texts = (name: string) =>
  Type.Record(ANY_KEY, Type.String({ error: `${name} must have texts as values` }), {
    error: `${name} must be an object of texts`,
  });

const Entries = (name: string) =>
  Type.Array(Type.String({ error: `${name} must be an array of texts` }), {
    error: `${name} must be an array of texts`,
  });
const Rules = Type.Record(ANY_KEY, Type.Array(Type.Object({ transform: optional(Type.Unknown()) })), {
  error: "network.rules must be an object of arrays",
});

/** Network of a sandbox. */
export const Network = Type.Object({
  allowOut: optional(Entries("allowOut")),
  denyOut: optional(Entries("denyOut")),
  allowPublicTraffic: optional(flag("allowPublicTraffic")),
  maskRequestHost: optional(Type.String({ maxLength: 255, error: "maskRequestHost must be a text" })),
  httpsPorts: optional(
    Type.Array(Type.Integer({ minimum: 1, maximum: 65_535 }), {
      maxItems: 64,
      error: "httpsPorts must be an array of at most 64 ports",
    }),
  ),
  rules: optional(Rules),
  egressProxy: optional(Type.Unknown()),
});
export type Network = Static<typeof Network>;

/** A request for a sandbox. */
export const NewSandbox = Type.Object({
  templateID: Type.String({
    minLength: 1,
    maxLength: 300,
    error: "templateID must be the name or the id of a template",
  }),
  timeout: optional(seconds("timeout")),
  autoPause: optional(flag("autoPause")),
  autoPauseMemory: optional(flag("autoPauseMemory")),
  autoResume: optional(
    Type.Object({ enabled: optional(flag("autoResume.enabled")) }, { error: "autoResume must be an object" }),
  ),
  metadata: optional({ ...texts("metadata"), maxProperties: METADATA_COUNT_MAX }),
  envVars: optional(texts("envVars")),
  allow_internet_access: optional(flag("allow_internet_access")),
  network: optional(Network),
  iam: optional(Type.Object({ tokens: optional(Type.Unknown()) }, { error: "iam must be an object" })),
  volumeMounts: optional(Type.Unknown()),
});
export type NewSandbox = Static<typeof NewSandbox>;

/** A time from now, or another one. */
export const Timeout = Type.Object({ timeout: seconds("timeout") });
export const Refresh = Type.Object({ duration: optional(seconds("duration")) });
export const Connect = Type.Object({ timeout: optional(seconds("timeout")), memory: optional(flag("memory")) });
export const Pause = Type.Object({ memory: optional(flag("memory")) });
export const Resume = Type.Object({ timeout: optional(seconds("timeout")), autoPause: optional(flag("autoPause")) });

export const ListQuery = Type.Object({
  metadata: Type.Optional(Type.String()),
  state: Type.Optional(Type.String()),
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: SECONDS_MAX, error: "limit must be an integer of at least 1" }),
  ),
  nextToken: Type.Optional(Type.String()),
  order: Type.Optional(Type.String()),
  startedAfter: Type.Optional(Type.String()),
  template: Type.Optional(Type.String()),
});
export type ListQuery = Static<typeof ListQuery>;
