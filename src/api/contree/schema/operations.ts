import { type Static, Type } from "@sinclair/typebox";
import { oneOf } from "../../wire-fields.ts";
import { flag, orNull, Page, Timestamp, Uuid } from "./common.ts";

/** States of this dialect; no operation is ever ASSIGNED. */
const STATUSES = ["PENDING", "ASSIGNED", "EXECUTING", "SUCCESS", "FAILED", "CANCELLED"] as const;
/** Kinds of operations of this dialect; operations of other kinds are in no list. */
export const KINDS = ["instance", "image_import"] as const;

/** A value in a query, or the Python enumeration member that some clients send instead, such as `OperationKind.INSTANCE`. */
const valueOrMember = (name: string, enumeration: string, values: readonly string[]) => {
  const any = values.join("|");
  return Type.String({
    pattern: `^(?:${any}|${enumeration}\\.(?:${any.toUpperCase()}))$`,
    description: `one of ${values.join(", ")}`,
    error: `${name} must be one of ${values.join(", ")}`,
  });
};

const meant =
  <Value extends string>(values: readonly Value[]) =>
  (sent: string | undefined): Value | undefined =>
    values.find((value) => sent === value || sent?.endsWith(`.${value.toUpperCase()}`));

/** The status that a query names. */
export const statusOf = meant(STATUSES);
/** The kind that a query names. */
export const kindOf = meant(KINDS);

const Seconds = (description: string) => Type.Number({ minimum: 0, description: `${description}, in seconds` });
const Count = Type.Integer({ minimum: 0 });

/** Query of the listing. */
export const OperationsQuery = Type.Object({
  ...Page,
  status: Type.Optional(valueOrMember("status", "OperationStatus", STATUSES)),
  kind: Type.Optional(valueOrMember("kind", "OperationKind", KINDS)),
});

/** Query of one operation. */
export const OperationQuery = Type.Object({
  inflight: Type.Optional(flag("inflight", "1: also the output of a running instance so far")),
});

/** Bytes of a stream. */
export const StreamObject = Type.Object({
  value: Type.String({ description: "bytes in the given encoding" }),
  encoding: oneOf(["ascii", "base64"], {
    description: "ascii when all bytes are printable ASCII, tabs or line ends, otherwise base64",
  }),
  truncated: Type.Boolean({ description: "true when only the first part was kept" }),
});

/** The result of a process. */
export const ProcessResult = Type.Object({
  stdout: StreamObject,
  stderr: StreamObject,
  state: Type.Object({
    exit_code: Type.Integer({ description: "-1 when a signal ended the process, and while it runs" }),
    signal: Type.Integer({ description: "number of the signal that ended the process; -1: none" }),
    timed_out: Type.Boolean(),
    pid: Type.Integer(),
    stopped: Type.Boolean(),
    continued: Type.Boolean(),
    core_dump: Type.Boolean(),
  }),
  resources: Type.Object({
    elapsed_time: Seconds("time from start to end"),
    monotonic_time: Seconds("the same"),
    user_cpu_time: Seconds("CPU time of the process"),
    system_cpu_time: Seconds("CPU time of the kernel for it"),
    max_rss: Type.Integer({ minimum: 0, description: "in KiB" }),
    cost: Type.Number(),
    block_input: Count,
    block_output: Count,
    involuntary_switches: Count,
    voluntary_switches: Count,
    page_faults: Count,
    page_faults_io: Count,
    shared_memory: Count,
    unshared_memory: Count,
    signals: Count,
    swaps: Count,
  }),
});

const MASKED = "values are masked";

/** The request of an instance, with its defaults. */
const RequestFields = {
  command: Type.String(),
  image: Uuid,
  args: Type.Array(Type.String()),
  shell: Type.Boolean(),
  env: Type.Record(Type.String(), Type.String(), { description: MASKED }),
  preserve_env: Type.Boolean(),
  preserve_cwd: Type.Boolean(),
  cwd: Type.String(),
  uid: Type.Integer(),
  gid: Type.Integer(),
  hostname: Type.String(),
  stdin: Type.Object({ value: Type.String({ description: MASKED }), encoding: Type.String(), close: Type.Boolean() }),
  timeout: Type.Integer({ description: "in seconds" }),
  truncate_output_at: Type.Integer({ description: "in bytes" }),
  disposable: Type.Boolean(),
  tag: Type.Optional(Type.String()),
  files: Type.Record(
    Type.String(),
    Type.Object({ uuid: Uuid, mode: Type.String(), uid: Type.Integer(), gid: Type.Integer() }),
  ),
  resources_limits: Type.Optional(Type.Object({ max_layer_bytes: Type.Integer() })),
  networking: Type.Object({ enabled: Type.Boolean() }),
};

/** Answer to a request for an instance. */
export const SpawnedInstance = Type.Object({ uuid: Uuid, ...RequestFields });

const InstanceMetadata = Type.Object({
  ...RequestFields,
  result: orNull(ProcessResult, { description: "null until the end, unless the output so far is requested" }),
});

const ImportMetadata = Type.Object({
  registry: Type.Object({
    url: Type.String(),
    credentials: Type.Optional(Type.Object({ username: Type.String(), password: Type.String() })),
  }),
  tag: orNull(Type.String()),
  timeout: Type.Integer({ description: "in seconds" }),
});

export const OperationSummary = Type.Object({
  uuid: Uuid,
  kind: oneOf(KINDS),
  status: oneOf(STATUSES),
  error: orNull(Type.String(), { description: "text of the failure" }),
  created_at: Timestamp,
  duration: Seconds("time from start to end, or until now"),
  image_uuid: orNull(Uuid, { description: "image on which an instance runs" }),
  result_image_uuid: orNull(Uuid, { description: "image of the result" }),
  image_size: orNull(Type.Integer(), { description: "size of the image of the result, in bytes" }),
  consumed_cpu: orNull(Type.Number(), { description: "in seconds" }),
  consumed_memory: orNull(Type.Integer(), { description: "in KiB" }),
});
export type OperationSummary = Static<typeof OperationSummary>;

export const OperationDetails = Type.Object({
  ...OperationSummary.properties,
  metadata: Type.Union([InstanceMetadata, ImportMetadata]),
  result: orNull(Type.Object({ image: orNull(Uuid), tag: orNull(Type.String()) }), {
    description: "null before the end",
  }),
});
