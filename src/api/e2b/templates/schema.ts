import { type Static, type TSchema, Type } from "@sinclair/typebox";

/** A field that may be absent or null, which means the same. */
const optional = <Schema extends TSchema>(schema: Schema) => {
  const error = schema["error"] as string | undefined;
  return Type.Optional(Type.Union([schema, Type.Null()], error === undefined ? {} : { error }));
};

const text = (name: string, maxLength = 65_536) =>
  Type.String({ maxLength, error: `${name} must be a text of at most ${maxLength} characters` });
const texts = (name: string) => Type.Array(text(name, 1_000_000), { error: `${name} must be an array of texts` });
const flag = (name: string) => Type.Boolean({ error: `${name} must be true or false` });
const amount = (name: string) =>
  Type.Integer({ minimum: 1, maximum: 1_000_000_000, error: `${name} must be a positive integer` });

/** A request for a build, whose steps follow. */
export const NewBuild = Type.Object({
  name: optional(text("name", 300)),
  /** of older clients */
  alias: optional(text("alias", 300)),
  tags: optional(texts("tags")),
  cpuCount: optional(amount("cpuCount")),
  memoryMB: optional(amount("memoryMB")),
});
export type NewBuild = Static<typeof NewBuild>;

/** A step as clients send it. */
export const Step = Type.Object({
  type: text("type", 32),
  args: optional(texts("args")),
  filesHash: optional(text("filesHash", 64)),
  force: optional(flag("force")),
});
export type Step = Static<typeof Step>;

const RegistryAccess = Type.Object({
  type: text("fromImageRegistry.type", 32),
  username: optional(text("fromImageRegistry.username", 1024)),
  password: optional(text("fromImageRegistry.password")),
});

/** The steps of a build. */
export const BuildStart = Type.Object({
  fromImage: optional(text("fromImage", 1024)),
  fromTemplate: optional(text("fromTemplate", 1024)),
  fromImageRegistry: optional(RegistryAccess),
  steps: optional(Type.Array(Step, { error: "steps must be an array of steps" })),
  force: optional(flag("force")),
  startCmd: optional(text("startCmd")),
  readyCmd: optional(text("readyCmd")),
});
export type BuildStart = Static<typeof BuildStart>;

export const TagAssignment = Type.Object({ target: text("target", 300), tags: texts("tags") });
export const TagRemoval = Type.Object({ name: text("name", 300), tags: texts("tags") });
export const TemplateChange = Type.Object({ public: optional(flag("public")) });

const offset = (name: string) =>
  Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, error: `${name} must be an integer of at least 0` });

/** A part of the log of a build. */
export const StatusQuery = Type.Object({
  logsOffset: Type.Optional(offset("logsOffset")),
  limit: Type.Optional(offset("limit")),
  level: Type.Optional(text("level", 16)),
});
export const LogsQuery = Type.Object({
  cursor: Type.Optional(offset("cursor")),
  limit: Type.Optional(offset("limit")),
  direction: Type.Optional(text("direction", 16)),
  level: Type.Optional(text("level", 16)),
});
