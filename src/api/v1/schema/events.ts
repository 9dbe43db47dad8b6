import { type Static, type TObject, type TProperties, type TSchema, Type } from "@sinclair/typebox";
import { OUTPUT_STREAMS } from "../../../domain/output.ts";
import { ErrorObject } from "../../errors.ts";
import { oneOf } from "../../wire-fields.ts";
import { Timestamp } from "./common.ts";
import { NetworkEventData, NetworkPolicyEventData } from "./network.ts";
import { IsolationSchema, OperationStatusSchema, OutputEncoding } from "./operations.ts";

const count = (description: string) => Type.Integer({ minimum: 0, description });
const nullable = (description: string) => Type.Union([Type.Integer(), Type.Null()], { description });
const data = <Properties extends TProperties>(description: string, properties: Properties): TObject<Properties> =>
  Type.Object(properties, { description });

const OutputData = data("stdout, stderr: output of a process", {
  content: Type.String({ description: "the bytes as text, in the given encoding" }),
  encoding: OutputEncoding,
});

const InitData = data("init: the instance has a machine", {
  started_at: Timestamp,
  isolation: IsolationSchema,
  hostname: Type.String(),
  vcpus: count("processors of the machine"),
  memory_bytes: count("memory of the machine"),
});

const SpawnData = data("spawn: a process has started", {
  pid: count("process id in the namespace of the instance"),
  command: Type.String(),
  args: Type.Array(Type.String()),
  args_truncated: Type.Optional(
    Type.Boolean({ description: "present and true when the command line or the directory is cut" }),
  ),
  cwd: Type.String(),
  uid: count("user of the process"),
  gid: count("group of the process"),
  user: Type.Optional(Type.String({ description: "the user of the request, in place of uid and gid" })),
  timeout: Type.Union([Type.Number(), Type.Null()], {
    description: "time limit in seconds; null: no limit of its own",
  }),
  truncate_output_at: Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
    description: "largest number of bytes to store of each stream; null: no limit but that of the log",
  }),
  pty: Type.Optional(Type.Object({ rows: count("rows"), cols: count("columns") })),
  stdin_bytes: Type.Optional(count("size of the standard input in the request for an additional process")),
  stdin_open: Type.Optional(Type.Boolean({ description: "whether more may follow that input" })),
  output_before: Type.Optional(
    Type.Object(
      { stdout: count("bytes of standard output"), stderr: count("bytes of standard error") },
      { description: "of a process that a fork continues: its output before the fork, which this log lacks" },
    ),
  ),
});

const StdinData = data("stdin: the standard input of a process that has ended; its content is not stored", {
  bytes: count("number of bytes"),
});

const TruncatedData = data("truncated: a stream was longer than its limit; once, before the exit", {
  stream: oneOf(OUTPUT_STREAMS),
  bytes_emitted: count("bytes that are in the log"),
  bytes_dropped: count("bytes that are not in the log"),
});

const SizeCapData = data("size_cap: the log is full; further output of additional processes is not stored", {
  limit_bytes: count("largest size of a log"),
  file_size: count("size of this log"),
});

const ExitData = data("exit: a process has ended", {
  pid: count("process id in the namespace of the instance"),
  exit_code: Type.Integer({ description: "exit code; 128+n when signal n ended the process" }),
  signal: nullable("the signal that ended the process, or null"),
  timed_out: Type.Boolean(),
  oom_killed: Type.Boolean(),
  core_dump: Type.Boolean(),
  duration_ms: count("time from start to end, in milliseconds"),
  cpu_time_ms: count("user and system time of the process and its children, in milliseconds"),
  memory_bytes: count("peak memory of the process and its children, including page cache"),
  resources: Type.Union(
    [
      Type.Object({
        user_time_us: count("µs"),
        sys_time_us: count("µs"),
        max_rss_kb: count("KiB"),
        minor_faults: count("page faults without a read"),
        major_faults: count("page faults with a read"),
        voluntary_ctx_switches: count("context switches"),
        involuntary_ctx_switches: count("context switches"),
        block_input_ops: count("blocks read"),
        block_output_ops: count("blocks written"),
      }),
      Type.Null(),
    ],
    { description: "null when the machine had to be killed" },
  ),
});

const ForkData = data("fork: the first event of a fork with memory, which continues the processes of its parent", {
  parent: Type.String({ format: "uuid", description: "the sandbox or the operation that was forked" }),
  at_event: Type.Integer({ description: "id of the last event of the parent before the fork; -1: it had none" }),
});

const ShutdownData = data("shutdown: the machine of the instance has been ended", {
  stopped_at: Timestamp,
  reason: oneOf(["job_complete", "timeout", "spawn_failed", "signal", "failed"]),
});

const AdoptedData = data("adopted: the instance has outlived a restart of the appliance; its output continues", {
  after_ms: count("time since the event before, in milliseconds"),
  daemon: Type.String({ description: "version of the appliance" }),
});

const StateData = data("state: the state of a sandbox has changed", {
  from: Type.Union([Type.String(), Type.Null()], { description: "null: the sandbox was created" }),
  to: Type.String(),
  reason: Type.String(),
  head: Type.Union([Type.String({ format: "uuid" }), Type.Null()], { description: "image of its files" }),
});

const EndsSoonData = data("ends_soon: the deadline of a sandbox is near", { ends_at: Timestamp });

const DroppedData = data("dropped: events that the reader has not seen are gone; a long log keeps only the latest", {
  first: count("id of the next event"),
  dropped: count("number of those events"),
});

const CompletionData = data("completion: the operation has ended", {
  status: OperationStatusSchema,
  duration_ms: count("time from start to end, in milliseconds"),
  image: Type.Optional(Type.String({ format: "uuid", description: "the image of the result" })),
  error: Type.Optional(ErrorObject),
});

const OtherData = Type.Record(Type.String(), Type.Unknown(), {
  description: "progress, checkpoint: depends on the type of the event and the kind of the operation",
});

/** An event of one type, or of types whose data has the same fields. */
const eventOf = <Event extends TSchema, Data extends TSchema>(type: Event, data: Data) =>
  Type.Object({
    id: count("number of the event in its operation, from 0"),
    time: Type.String({
      format: "date-time",
      description: "ISO 8601 timestamp in UTC with nanoseconds; of an output, when its first byte reached the host",
      examples: ["2026-11-20T10:30:00.123456789Z"],
    }),
    spid: Type.Optional(count("number of the process: 0 is the agent, 1 the command; further processes have 2 and up")),
    type,
    data,
  });

const OutputEvent = eventOf(oneOf(OUTPUT_STREAMS), OutputData);
const InitEvent = eventOf(Type.Literal("init"), InitData);
const SpawnEvent = eventOf(Type.Literal("spawn"), SpawnData);
const StdinEvent = eventOf(Type.Literal("stdin"), StdinData);
const TruncatedEvent = eventOf(Type.Literal("truncated"), TruncatedData);
const SizeCapEvent = eventOf(Type.Literal("size_cap"), SizeCapData);
const ExitEvent = eventOf(Type.Literal("exit"), ExitData);
const NetworkEvent = eventOf(Type.Literal("network"), NetworkEventData);
const NetworkPolicyEvent = eventOf(Type.Literal("network_policy"), NetworkPolicyEventData);
const ProgressEvent = eventOf(Type.Literal("progress"), OtherData);
const ForkEvent = eventOf(Type.Literal("fork"), ForkData);
const CheckpointEvent = eventOf(Type.Literal("checkpoint"), OtherData);
const ShutdownEvent = eventOf(Type.Literal("shutdown"), ShutdownData);
const AdoptedEvent = eventOf(Type.Literal("adopted"), AdoptedData);
const StateEvent = eventOf(Type.Literal("state"), StateData);
const EndsSoonEvent = eventOf(Type.Literal("ends_soon"), EndsSoonData);
const DroppedEvent = eventOf(Type.Literal("dropped"), DroppedData);
const CompletionEvent = eventOf(Type.Literal("completion"), CompletionData);

/** Events by the names that their schemas have in the description of the API. */
export const EVENT_SCHEMAS = {
  AdoptedEvent,
  ForkEvent,
  CheckpointEvent,
  CompletionEvent,
  DroppedEvent,
  EndsSoonEvent,
  ExitEvent,
  InitEvent,
  NetworkEvent,
  NetworkPolicyEvent,
  OutputEvent,
  ProgressEvent,
  ShutdownEvent,
  SizeCapEvent,
  SpawnEvent,
  StateEvent,
  StdinEvent,
  TruncatedEvent,
} as const;

/** An event of an operation's log, tagged by `type`. */
export const OperationEvent = Type.Union(
  [
    InitEvent,
    ProgressEvent,
    SpawnEvent,
    StdinEvent,
    OutputEvent,
    TruncatedEvent,
    SizeCapEvent,
    ExitEvent,
    NetworkEvent,
    NetworkPolicyEvent,
    ForkEvent,
    CheckpointEvent,
    ShutdownEvent,
    AdoptedEvent,
    StateEvent,
    EndsSoonEvent,
    DroppedEvent,
    CompletionEvent,
  ],
  { discriminator: { propertyName: "type" } },
);
export type OperationEvent = Static<typeof OperationEvent>;
