import { type Static, type TObject, type TProperties, Type } from "@sinclair/typebox";
import { LOG_EVENT_TYPES } from "../../../domain/log-event.ts";
import { ISOLATIONS } from "../../../domain/operation.ts";
import { OUTPUT_STREAMS } from "../../../domain/output.ts";
import { oneOf, Timestamp } from "./common.ts";
import { ErrorObject, OperationStatusSchema } from "./operations.ts";

const count = (description: string) => Type.Integer({ minimum: 0, description });
const nullable = (description: string) => Type.Union([Type.Integer(), Type.Null()], { description });
const data = <Properties extends TProperties>(description: string, properties: Properties): TObject<Properties> =>
  Type.Object(properties, { description });

const OutputData = data("stdout, stderr: what a process wrote", {
  content: Type.String({ description: "the bytes as text, in the given encoding" }),
  encoding: oneOf(["ascii", "base64"], { description: "ascii when every byte is below 0x80, otherwise base64" }),
});

const InitData = data("init: the instance has a machine", {
  started_at: Timestamp,
  isolation: oneOf(ISOLATIONS),
  hostname: Type.String(),
  vcpus: count("processors of the machine"),
  memory_bytes: count("memory of the machine"),
});

const SpawnData = data("spawn: a process began", {
  pid: count("in the namespace of the instance"),
  command: Type.String(),
  args: Type.Array(Type.String()),
  args_truncated: Type.Optional(Type.Boolean({ description: "present and true when the command line is cut" })),
  cwd: Type.String(),
  uid: count("user of the process"),
  gid: count("group of the process"),
  timeout: Type.Union([Type.Number(), Type.Null()], { description: "time limit in seconds; null: none of its own" }),
  truncate_output_at: count("bytes of each stream that are kept"),
  pty: Type.Optional(Type.Object({ rows: count("rows"), cols: count("columns") })),
});

const StdinData = data("stdin: bytes that a process was given until its end; the content is not kept", {
  bytes: count("number of bytes"),
});

const TruncatedData = data("truncated: a stream wrote more than is kept; once, before the exit", {
  stream: oneOf(OUTPUT_STREAMS),
  bytes_emitted: count("bytes that are in the log"),
  bytes_dropped: count("bytes that are not"),
});

const SizeCapData = data("size_cap: the log is full; output of processes beside the command is not kept any more", {
  limit_bytes: count("largest size of a log"),
  file_size: count("size of this one"),
});

const ExitData = data("exit: a process ended", {
  pid: count("in the namespace of the instance"),
  exit_code: Type.Integer({ description: "128+n when signal n ended it" }),
  signal: nullable("the signal that ended it, or null"),
  timed_out: Type.Boolean(),
  oom_killed: Type.Boolean(),
  core_dump: Type.Boolean(),
  duration_ms: count("from its start to its end, in milliseconds"),
  cpu_time_ms: count("user and system time of it and its children, in milliseconds"),
  memory_bytes: count("peak memory of it and its children, page cache included"),
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

const ShutdownData = data("shutdown: the machine of the instance is ended", {
  stopped_at: Timestamp,
  reason: oneOf(["job_complete", "timeout", "spawn_failed", "signal", "failed"]),
});

const CompletionData = data("completion: the operation has ended", {
  status: OperationStatusSchema,
  duration_ms: count("from start to finish, in milliseconds"),
  image: Type.Optional(Type.String({ format: "uuid", description: "the image of the result" })),
  error: Type.Optional(ErrorObject),
});

const OtherData = Type.Record(Type.String(), Type.Unknown(), {
  description: "progress, network, checkpoint: depends on the kind of the operation",
});

/** An event of an operation's log. */
export const OperationEvent = Type.Object({
  id: count("number of the event in its operation, from 0"),
  time: Type.String({
    format: "date-time",
    description: "ISO 8601 timestamp in UTC with nanoseconds; of an output, when its first byte reached the host",
    examples: ["2026-11-20T10:30:00.123456789Z"],
  }),
  spid: Type.Optional(count("process: 0 the agent, 1 the command, from 2 what was started beside it")),
  type: oneOf(LOG_EVENT_TYPES, { description: "what happened" }),
  data: Type.Union([
    ...[OutputData, InitData, SpawnData, StdinData, TruncatedData, SizeCapData, ExitData],
    ...[ShutdownData, CompletionData, OtherData],
  ]),
});
export type OperationEvent = Static<typeof OperationEvent>;
