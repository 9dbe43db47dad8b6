import { type Static, Type } from "@sinclair/typebox";
import { USER_LENGTH_MAX } from "../../../domain/instance.ts";
import { Timestamp } from "./common.ts";
import { COMMAND_FIELDS, PtySize } from "./instances.ts";
import { OutputObject } from "./operations.ts";

/** A user of the guest. */
export const UserName = Type.String({
  minLength: 1,
  maxLength: USER_LENGTH_MAX,
  description: "name in the guest's passwd, with its groups, home and login shell; or UID or UID:GID",
  examples: ["node"],
  error: "user must be the name of a user, UID or UID:GID",
});

export const ProcessRequest = Type.Object({
  ...COMMAND_FIELDS,
  user: Type.Optional(UserName),
  timeout: Type.Optional(
    Type.Integer({
      minimum: 1,
      description: "maximum execution time, in seconds; absent: only that of the instance",
      error: "timeout must be a positive integer",
    }),
  ),
  linger: Type.Optional(
    Type.Boolean({
      default: false,
      description: "what the process leaves behind stays until the instance ends, and keeps the outputs open",
      error: "linger must be a boolean",
    }),
  ),
});
export type ProcessRequest = Static<typeof ProcessRequest>;

const Spid = Type.Integer({ description: "number of the process in its instance; the command has 1" });
const nullable = (description: string) => Type.Union([Type.Integer(), Type.Null()], { description });

export const StartedProcess = Type.Object({
  spid: Spid,
  pid: nullable("process id in the guest; null: it ended before it had one"),
});

/** A process, without its outputs. */
export const Process = Type.Object({
  spid: Spid,
  pid: Type.Integer({ description: "process id in the guest" }),
  state: Type.Union([Type.Literal("running"), Type.Literal("ended"), Type.Literal("lost")], {
    description: "lost: the machine or the host failed before the end of the process was known",
  }),
  command: Type.String(),
  args: Type.Array(Type.String()),
  args_truncated: Type.Optional(
    Type.Boolean({ description: "true when only the first part of the arguments, or of the directory, is stored" }),
  ),
  cwd: Type.String(),
  uid: Type.Integer(),
  gid: Type.Integer(),
  user: Type.Optional(Type.String({ description: "the user of the request, in place of uid and gid" })),
  pty: Type.Optional(PtySize),
  started_at: Timestamp,
  ended_at: Type.Optional(Timestamp),
  exit_code: nullable("exit code; 128+n when signal n ended the process; null while it runs"),
  signal: nullable("number of the signal that ended the process; null when none did, or while it runs"),
  timed_out: Type.Optional(Type.Boolean({ description: "true when its time limit was hit" })),
  oom_killed: Type.Optional(Type.Boolean({ description: "present and true when the guest ran out of memory" })),
  duration_ms: Type.Optional(Type.Integer({ description: "time from start to end, in milliseconds" })),
  cpu_time_ms: nullable("user and system time of the process and its children, in milliseconds; null while it runs"),
  memory_bytes: nullable("peak memory of the process and its children, page cache included; null while it runs"),
});
export type Process = Static<typeof Process>;

/** A process with its output so far. */
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
    Type.Boolean({ default: false, description: "close the input after the bytes", error: "close must be a boolean" }),
  ),
});
export type StdinRequest = Static<typeof StdinRequest>;
