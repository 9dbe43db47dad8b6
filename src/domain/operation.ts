import { type Static, Type } from "@sinclair/typebox";
import { Timestamp, Uuid } from "./ids.ts";
import { oneOf } from "./one-of.ts";
import { OutputObject } from "./output.ts";

export const OPERATION_STATUSES = ["PENDING", "EXECUTING", "SUCCESS", "FAILED", "CANCELLED"] as const;
export type OperationStatus = (typeof OPERATION_STATUSES)[number];

export const OPERATION_KINDS = ["image_import", "instance"] as const;
export type OperationKind = (typeof OPERATION_KINDS)[number];

export const OPERATION_TRANSITIONS = ["start", "succeed", "fail", "cancel"] as const;
export type OperationTransition = (typeof OPERATION_TRANSITIONS)[number];

/** Statuses in which an operation stays for ever. */
export type EndStatus = Extract<OperationStatus, "SUCCESS" | "FAILED" | "CANCELLED">;

/** The whole life cycle; a missing status or transition does not compile. */
const LIFE_CYCLE = {
  PENDING: { start: "EXECUTING", succeed: null, fail: "FAILED", cancel: "CANCELLED" },
  EXECUTING: { start: null, succeed: "SUCCESS", fail: "FAILED", cancel: "CANCELLED" },
  SUCCESS: { start: null, succeed: null, fail: null, cancel: null },
  FAILED: { start: null, succeed: null, fail: null, cancel: null },
  CANCELLED: { start: null, succeed: null, fail: null, cancel: null },
} as const satisfies Record<OperationStatus, Record<OperationTransition, OperationStatus | null>>;

/** The status after `transition`, or null where it is not allowed. Terminal states never change. */
export function next(status: OperationStatus, transition: OperationTransition): OperationStatus | null {
  return LIFE_CYCLE[status][transition];
}

/** Statuses from which `transition` is allowed: the compare side of a compare-and-set. */
export function sourcesOf(transition: OperationTransition): OperationStatus[] {
  return OPERATION_STATUSES.filter((status) => next(status, transition) !== null);
}

export function isTerminal(status: OperationStatus): boolean {
  return OPERATION_TRANSITIONS.every((transition) => next(status, transition) === null);
}

/** How strongly the command was separated from the host. */
export const ISOLATIONS = ["vm", "vm-emulated"] as const;
export type Isolation = (typeof ISOLATIONS)[number];

/** Result of an instance operation; a listing leaves `stdout` and `stderr` out. */
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
  isolation: oneOf(ISOLATIONS, {
    description: "vm: hardware virtualisation; vm-emulated: an emulated CPU, which is no security boundary",
  }),
});
export type InstanceResult = Static<typeof InstanceResult>;

/** An instance's result as its row keeps it: the outputs themselves are files. */
export type StoredInstanceResult = Omit<InstanceResult, "stdout" | "stderr"> & {
  readonly stdout: StoredOutput;
  readonly stderr: StoredOutput;
};

export interface StoredOutput {
  readonly truncated: boolean;
  /** nothing was written, so there is no file to look for */
  readonly empty?: boolean;
}

/** Result of an image import. */
export const ImportResult = Type.Object({
  image: Uuid,
  tag: Type.Optional(Type.String()),
  digest: Type.String({ description: "digest of the imported manifest", examples: ["sha256:9f86d0…"] }),
  size_bytes: Type.Integer({ description: "disk space of the image's base layer, in bytes" }),
});
export type ImportResult = Static<typeof ImportResult>;

const enumOf = <const T extends readonly string[]>(values: T, description: string) =>
  oneOf(values, { description, error: `must be one of ${values.join(", ")}` });

export const OperationStatusSchema = enumOf(OPERATION_STATUSES, "where the operation is in its life");
export const OperationKindSchema = enumOf(OPERATION_KINDS, "what the operation does");

/** The error object as it stands in a FAILED operation. */
export const ErrorObject = Type.Object({
  error: Type.String({ description: "machine-readable error value" }),
  message: Type.String({ description: "human-readable text" }),
  details: Type.Record(Type.String(), Type.Unknown(), { description: "additional information; may be empty" }),
});

/** Operation on the wire. */
export const Operation = Type.Object({
  id: Uuid,
  status: OperationStatusSchema,
  kind: OperationKindSchema,
  created_at: Timestamp,
  started_at: Type.Optional(Timestamp),
  finished_at: Type.Optional(Timestamp),
  duration_ms: Type.Optional(Type.Integer({ description: "from start to finish, in milliseconds" })),
  result: Type.Optional(Type.Union([InstanceResult, ImportResult])),
  error: Type.Optional(ErrorObject),
});
export type Operation = Static<typeof Operation>;
