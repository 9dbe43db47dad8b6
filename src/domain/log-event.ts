import type { ErrorBody } from "./errors.ts";
import type { EndStatus, Isolation } from "./operation.ts";
import type { OutputStream } from "./output.ts";

/** What can stand in the event log of an operation. */
export const LOG_EVENT_TYPES = [
  "init",
  "progress",
  "spawn",
  "stdin",
  "stdout",
  "stderr",
  "truncated",
  "size_cap",
  "exit",
  "network",
  "checkpoint",
  "shutdown",
  "completion",
] as const;
export type LogEventType = (typeof LOG_EVENT_TYPES)[number];

/** Events whose payload is what a process wrote, as it wrote it; of all others it is JSON. */
export type OutputEventType = OutputStream;
/** Events with data of their own; `completion` is made from the operation and is never stored. */
export type DataEventType = Exclude<LogEventType, OutputEventType | "completion">;

/** Numbers of processes: the agent, and the command that an instance is there for. What runs beside it has 2 and up. */
export const Spid = { agent: 0, command: 1 } as const;

/** Why the machine of an instance was ended. */
export type ShutdownReason =
  /** the command ended, and what was to be kept of it is kept */
  | "job_complete"
  /** the command was over its time */
  | "timeout"
  /** the command could not be started */
  | "spawn_failed"
  /** it was ended from outside: a cancel, or the service stops */
  | "signal"
  /** the machine or the host failed */
  | "failed";

/** What the kernel counted of a process and of the children that it waited for. */
export interface ExitResources {
  readonly user_time_us: number;
  readonly sys_time_us: number;
  readonly max_rss_kb: number;
  readonly minor_faults: number;
  readonly major_faults: number;
  readonly voluntary_ctx_switches: number;
  readonly involuntary_ctx_switches: number;
  readonly block_input_ops: number;
  readonly block_output_ops: number;
}

/** `data` of each event that is not an output, as it stands on the wire. */
export interface LogEventData {
  /** the instance has a machine; again when another one takes the place of one that was lost before the command began */
  readonly init: {
    readonly started_at: string;
    readonly isolation: Isolation;
    readonly hostname: string;
    readonly vcpus: number;
    readonly memory_bytes: number;
  };
  /** how far a long step came; each kind of operation has steps of its own */
  readonly progress: Readonly<Record<string, unknown>>;
  readonly spawn: {
    /** in the namespace of the instance */
    readonly pid: number;
    readonly command: string;
    readonly args: readonly string[];
    /** only the first part of a long command line is kept */
    readonly args_truncated?: true;
    readonly cwd: string;
    readonly uid: number;
    readonly gid: number;
    /** seconds; null: no limit of its own */
    readonly timeout: number | null;
    readonly truncate_output_at: number;
    readonly pty?: { readonly rows: number; readonly cols: number };
  };
  /** what the process was given until its end; its content is not kept, as it may be secret */
  readonly stdin: { readonly bytes: number };
  /** what a stream wrote beyond its cap, or that of the log: once, before the `exit` */
  readonly truncated: {
    readonly stream: OutputStream;
    readonly bytes_emitted: number;
    readonly bytes_dropped: number;
  };
  /** from here on no output of processes beside the command is kept */
  readonly size_cap: { readonly limit_bytes: number; readonly file_size: number };
  readonly exit: {
    readonly pid: number;
    /** 128+n when signal n ended it */
    readonly exit_code: number;
    readonly signal: number | null;
    readonly timed_out: boolean;
    readonly oom_killed: boolean;
    readonly core_dump: boolean;
    readonly duration_ms: number;
    readonly cpu_time_ms: number;
    readonly memory_bytes: number;
    /** null when the machine had to be killed, which then says nothing of them */
    readonly resources: ExitResources | null;
  };
  readonly network: Readonly<Record<string, unknown>>;
  /** an image was made of the files of the instance, which goes on */
  readonly checkpoint: {
    /** id of the operation that made it */
    readonly operation: string;
    readonly image: string;
    /** how long the instance could not write */
    readonly pause_ms: number;
  };
  readonly shutdown: { readonly stopped_at: string; readonly reason: ShutdownReason };
}

/** `data` of the last event. */
export interface CompletionData {
  readonly status: EndStatus;
  readonly duration_ms: number;
  /** uuid of the image of the result */
  readonly image?: string;
  readonly error?: ErrorBody;
}

/** An event as the log has it. */
export interface LogEvent {
  /** from 0, in the order of the log, without gaps */
  readonly id: number;
  /** ns since the epoch; of outputs, when the first of the bytes reached the host */
  readonly timeNs: bigint;
  /** the process that it is about; null: none */
  readonly spid: number | null;
  readonly type: LogEventType;
  /** bytes of an output as they are; JSON for the rest */
  readonly payload: Uint8Array;
}

const NS_PER_MS = 1_000_000n;

/** Wire form of a time in ns since the epoch: ISO 8601 in UTC with nine digits of the second. */
export function isoTimeNs(ns: bigint): string {
  const ms = new Date(Number(ns / NS_PER_MS)).toISOString();
  return `${ms.slice(0, -1)}${String(ns % NS_PER_MS).padStart(6, "0")}Z`;
}

/** ns since the epoch of a time in `milliseconds`. */
export function nsOf(ms: number): bigint {
  return BigInt(ms) * NS_PER_MS;
}
