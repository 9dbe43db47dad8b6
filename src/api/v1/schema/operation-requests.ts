import { type Static, Type } from "@sinclair/typebox";
import { Reference } from "./common.ts";
import { InstanceFile, SpawnRequest } from "./instances.ts";
import { NetworkField } from "./network.ts";

/** Values of variables and standard input are not kept. */
const { env: _env, stdin: _stdin, ...KEPT_FIELDS } = SpawnRequest.properties;
const seconds = Type.Integer({ minimum: 1, description: "in seconds" });

/** The request of an instance, with the field names of `POST /instances`, so that it can be sent again. */
export const InstanceOperationRequest = Type.Object({
  kind: Type.Literal("instance"),
  ...KEPT_FIELDS,
  image: Reference("the image that it starts from, which may be deleted"),
  args: Type.Array(Type.String()),
  uid: Type.Integer({ description: "user id of the command" }),
  gid: Type.Integer({ description: "group id of the command" }),
  env_names: Type.Optional(Type.Array(Type.String(), { description: "names of its variables; values are not kept" })),
  stdin_bytes: Type.Optional(Type.Integer({ description: "size of the standard input of the request" })),
  stdin_open: Type.Boolean({ description: "true: more standard input could be written" }),
  files: Type.Record(Type.String(), InstanceFile, { description: "input files, by absolute path" }),
  network: NetworkField,
  truncated: Type.Optional(
    Type.Boolean({ description: "true: the request is long, so only the beginnings of texts and lists are stored" }),
  ),
});
export type InstanceOperationRequest = Static<typeof InstanceOperationRequest>;

/** The request of an import. */
export const ImportOperationRequest = Type.Object({
  kind: Type.Literal("image_import"),
  registry: Type.Optional(Type.String({ description: "registry image reference" })),
  file: Type.Optional(Reference("the uploaded archive, in place of a registry")),
  tag: Type.Optional(Type.String()),
  timeout: seconds,
});
export type ImportOperationRequest = Static<typeof ImportOperationRequest>;

/** The request of a checkpoint. */
export const CheckpointOperationRequest = Type.Object({
  kind: Type.Literal("checkpoint"),
  instance: Reference("the instance whose files it copies"),
  tag: Type.Optional(Type.String()),
  timeout: seconds,
});
export type CheckpointOperationRequest = Static<typeof CheckpointOperationRequest>;

/** The request of an instance of a sandbox. */
export const SandboxOperationRequest = Type.Object({
  kind: Type.Literal("sandbox"),
  sandbox: Reference("the sandbox whose instance it is"),
  image: Reference("the image that it starts from, which may be deleted"),
  hostname: Type.String(),
  files: Type.Record(Type.String(), InstanceFile, { description: "input files, by absolute path" }),
  resources: SpawnRequest.properties.resources,
  network: NetworkField,
});
export type SandboxOperationRequest = Static<typeof SandboxOperationRequest>;

/** The request of an operation. */
export const OperationRequest = Type.Union(
  [InstanceOperationRequest, ImportOperationRequest, CheckpointOperationRequest, SandboxOperationRequest],
  {
    discriminator: { propertyName: "kind" },
  },
);
export type OperationRequest = Static<typeof OperationRequest>;
