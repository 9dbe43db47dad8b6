import { type Static, Type } from "@sinclair/typebox";
import { Timestamp } from "./common.ts";
import { COMMAND_FIELDS, PtySize } from "./instances.ts";
import { OutputObject } from "./operations.ts";

export const ProcessRequest = Type.Object({
  ...COMMAND_FIELDS,
  timeout: Type.Optional(
    Type.Integer({
      minimum: 1,
      description: "maximum execution time, in seconds; no limit of its own when absent",
      error: "timeout must be a positive integer",
    }),
  ),
});
export type ProcessRequest = Static<typeof ProcessRequest>;

const Spid = Type.Integer({ description: "number of the process in its instance; the command has 1" });
export const StartedProcess = Type.Object({ spid: Spid });

const nullable = (description: string) => Type.Union([Type.Integer(), Type.Null()], { description });

/** A process of an instance, without its outputs. */
export const Process = Type.Object({
  spid: Spid,
  state: Type.Union([Type.Literal("running"), Type.Literal("ended"), Type.Literal("lost")], {
    description: "lost: the machine or the host failed before its end was known",
  }),
  command: Type.String(),
  args: Type.Array(Type.String()),
  args_truncated: Type.Optional(Type.Boolean({ description: "true when only the first part of them is kept" })),
  cwd: Type.String(),
  uid: Type.Integer(),
  gid: Type.Integer(),
  pty: Type.Optional(PtySize),
  started_at: Timestamp,
  ended_at: Type.Optional(Timestamp),
  exit_code: nullable("128+n when signal n ended it; null while it runs"),
  signal: nullable("number of the signal that ended it; null when none did, and while it runs"),
  timed_out: Type.Optional(Type.Boolean({ description: "true when its time limit was hit" })),
  oom_killed: Type.Optional(Type.Boolean({ description: "present and true when its memory ran out" })),
  duration_ms: Type.Optional(Type.Integer({ description: "in milliseconds" })),
  cpu_time_ms: nullable("user and system time of the process and its children, in milliseconds; null while it runs"),
  memory_bytes: nullable("peak memory of the process and its children, page cache included; null while it runs"),
});
export type Process = Static<typeof Process>;

/** A process with what it has written until now. */
export const ProcessDetails = Type.Object({ ...Process.properties, stdout: OutputObject, stderr: OutputObject });

export const StdinRequest = Type.Object({
  content: Type.String({ description: "bytes in the given encoding", error: "content must be a string" }),
  encoding: Type.Optional(
    Type.Union([Type.Literal("ascii"), Type.Literal("base64")], {
      default: "ascii",
      error: "encoding must be ascii or base64",
    }),
  ),
  close: Type.Optional(
    Type.Boolean({ default: false, description: "end the input behind it", error: "close must be a boolean" }),
  ),
});
export type StdinRequest = Static<typeof StdinRequest>;
