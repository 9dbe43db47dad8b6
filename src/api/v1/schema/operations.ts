import { type Static, Type } from "@sinclair/typebox";
import { ISOLATIONS, OPERATION_KINDS, OPERATION_STATUSES } from "../../../domain/operation.ts";
import { ErrorObject } from "../../errors.ts";
import { oneOf } from "../../wire-fields.ts";
import { Timestamp, Uuid } from "./common.ts";
import { NetworkAudit } from "./network.ts";

/** Response to a request that starts an operation: its id, which is also in the Location header. */
export const AcceptedOperation = Type.Object({ uuid: Uuid });

/** How bytes are text on the wire. */
export const OutputEncoding = oneOf(["ascii", "base64"], {
  description: "ascii when every byte is below 0x80, otherwise base64",
});

export const OutputObject = Type.Object({
  content: Type.String({ description: "captured text, in the given encoding" }),
  encoding: OutputEncoding,
  truncated: Type.Boolean({ description: "true when the output was cut at the truncation limit" }),
});
export type OutputObject = Static<typeof OutputObject>;

/** Wire form of the captured part of a stream. */
export function outputObject(kept: Uint8Array, truncated: boolean): OutputObject {
  const bytes = Buffer.from(kept.buffer, kept.byteOffset, kept.byteLength);
  const ascii = bytes.every((byte) => byte < 0x80);
  return {
    content: bytes.toString(ascii ? "latin1" : "base64"),
    encoding: ascii ? "ascii" : "base64",
    truncated,
  };
}

/** How a sandbox was isolated from the host. */
export const IsolationSchema = oneOf(ISOLATIONS, {
  description: "vm: hardware virtualisation; vm-emulated: an emulated CPU, which is not a security boundary",
});

/** Result of an instance operation; a listing leaves `stdout`, `stderr` and `network` out. */
export const InstanceResult = Type.Object({
  exit_code: Type.Integer({ description: "exit code of the command; 128+n when signal n ended it" }),
  stdout: Type.Optional(OutputObject),
  stderr: Type.Optional(OutputObject),
  cpu_time_ms: Type.Integer({ description: "user and system time of the command and its children, in milliseconds" }),
  memory_bytes: Type.Integer({ description: "peak memory of the command and its children, page cache included" }),
  timed_out: Type.Boolean({ description: "true when the execution time limit was hit" }),
  oom_killed: Type.Optional(Type.Boolean({ description: "present and true when the guest ran out of memory" })),
  image: Type.Optional(
    Type.String({ format: "uuid", description: "the captured image; absent when the instance was disposable" }),
  ),
  tag: Type.Optional(Type.String({ description: "the tag that the request gave the image" })),
  isolation: IsolationSchema,
  network: Type.Optional(NetworkAudit),
});
export type InstanceResult = Static<typeof InstanceResult>;

/** Result of an image import. */
export const ImportResult = Type.Object({
  image: Uuid,
  tag: Type.Optional(Type.String()),
  digest: Type.String({ description: "digest of the imported manifest", examples: ["sha256:9f86d0…"] }),
  size_bytes: Type.Integer({ description: "disk space of the image's base layer, in bytes" }),
});
export type ImportResult = Static<typeof ImportResult>;

/** Result of a checkpoint. */
export const CheckpointResult = Type.Object({
  image: Uuid,
  tag: Type.Optional(Type.String()),
  size_bytes: Type.Integer({
    description: "disk space that the checkpoint adds to the image of the instance, in bytes",
  }),
  pause_ms: Type.Number({ minimum: 0, description: "time without writes of the instance, in milliseconds" }),
});
export type CheckpointResult = Static<typeof CheckpointResult>;

/** Result of an instance of a sandbox. */
export const SandboxResult = Type.Object({
  image: Type.Optional(Type.String({ format: "uuid", description: "its files; absent when they were given up" })),
  tag: Type.Optional(Type.String()),
  cpu_time_ms: Type.Integer({ description: "user and system time of its processes, in milliseconds" }),
  memory_bytes: Type.Integer({ description: "peak memory of its processes, page cache included" }),
  isolation: IsolationSchema,
  network: Type.Optional(NetworkAudit),
});
export type SandboxResult = Static<typeof SandboxResult>;

const enumOf = <const T extends readonly string[]>(values: T, description: string) =>
  oneOf(values, { description, error: `must be one of ${values.join(", ")}` });

export const OperationStatusSchema = enumOf(OPERATION_STATUSES, "state of the operation");
export const OperationKindSchema = enumOf(OPERATION_KINDS, "kind of work");

/** Operation on the wire. */
export const Operation = Type.Object({
  id: Uuid,
  status: OperationStatusSchema,
  kind: OperationKindSchema,
  created_at: Timestamp,
  started_at: Type.Optional(Timestamp),
  finished_at: Type.Optional(Timestamp),
  duration_ms: Type.Optional(Type.Integer({ description: "from start to finish, in milliseconds" })),
  parent: Type.Optional(
    Type.String({
      format: "uuid",
      description: "the operation whose machine was forked for this one, with its memory",
    }),
  ),
  forked_at_event: Type.Optional(
    Type.Integer({ description: "id of the last event of the parent before the fork, in the log of its processes" }),
  ),
  result: Type.Optional(Type.Union([InstanceResult, ImportResult, CheckpointResult, SandboxResult])),
  error: Type.Optional(ErrorObject),
  network: Type.Optional(NetworkAudit),
  about: Type.Optional(
    Type.String({
      description:
        "with `about` in a listing: the beginning of the command, or the reference that is imported; absent when the " +
        "request is long or was not kept",
    }),
  ),
  image: Type.Optional(
    Type.String({
      format: "uuid",
      description: "with `about` in a listing: the image that an instance or checkpoint starts from, while it exists",
    }),
  ),
});
export type Operation = Static<typeof Operation>;

/** A log line of an operation. */
export const LogLine = Type.Object({
  time: Timestamp,
  level: Type.String({ description: "debug, info, warn or error" }),
  message: Type.String(),
  request: Type.Optional(Type.String({ description: "id of the request that started the operation" })),
  kind: Type.Optional(Type.String()),
  status: Type.Optional(Type.String()),
  error: Type.Optional(Type.String()),
  reason: Type.Optional(Type.String()),
  phases: Type.Optional(
    Type.Record(Type.String(), Type.Integer({ minimum: 0 }), { description: "duration of each step, in milliseconds" }),
  ),
});
export type LogLine = Static<typeof LogLine>;
