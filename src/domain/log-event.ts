import type { ErrorBody } from "./errors.ts";
import type { NetworkEntry, NetworkPeriod, NetworkPolicy } from "./network.ts";
import type { EndStatus, Isolation } from "./operation.ts";
import type { OutputStream } from "./output.ts";
import type { SandboxState } from "./sandbox.ts";

/** Types of events of a log. */
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
  "network_policy",
  "checkpoint",
  "fork",
  "shutdown",
  "adopted",
  "state",
  "ends_soon",
  "dropped",
  "completion",
] as const;
export type LogEventType = (typeof LOG_EVENT_TYPES)[number];

/** Events whose payload is the raw output of a process. The payload of all others is JSON. */
export type OutputEventType = OutputStream;
/**
 * Events that are not stored: `completion` is made from the operation, and `dropped` for a reader of a log whose first events
 * are gone.
 */
export type DerivedEventType = "dropped" | "completion";
/** Events whose JSON is stored. */
export type DataEventType = Exclude<LogEventType, OutputEventType | DerivedEventType>;

/** Process numbers of an instance. Further processes get 2 and up. */
export const Spid = { agent: 0, command: 1 } as const;

/** Reasons for the end of an instance's machine. */
export type ShutdownReason =
  /** the command ended, and its files were captured unless the run is disposable */
  | "job_complete"
  /** the command exceeded its time limit */
  | "timeout"
  /** the command could not be started */
  | "spawn_failed"
  /** the operation was cancelled, or the service stops */
  | "signal"
  /** the machine or the host failed */
  | "failed";

/** Resource usage of a process and of the children that it waited for, as the guest's kernel counted it. */
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

/** `data` of each event that is not an output, in its wire form. */
export interface LogEventData {
  /** the instance has a machine; sent again when a machine that was lost before the command began is replaced */
  readonly init: {
    readonly started_at: string;
    readonly isolation: Isolation;
    readonly hostname: string;
    readonly vcpus: number;
    readonly memory_bytes: number;
  };
  /** progress of a long step; the steps depend on the kind of the operation */
  readonly progress: Readonly<Record<string, unknown>>;
  readonly spawn: {
    /** in the pid namespace of the instance */
    readonly pid: number;
    readonly command: string;
    readonly args: readonly string[];
    /** true when only the first part of a long command line, or of a directory, is stored */
    readonly args_truncated?: true;
    readonly cwd: string;
    readonly uid: number;
    readonly gid: number;
    /** in place of `uid` and `gid`: the user that the guest has resolved */
    readonly user?: string;
    /** in seconds; null: no limit */
    readonly timeout: number | null;
    /** null: no limit but that of the log */
    readonly truncate_output_at: number | null;
    readonly pty?: { readonly rows: number; readonly cols: number };
    /** of an additional process that was started with a standard input: its size */
    readonly stdin_bytes?: number;
    /** true when more may follow that input */
    readonly stdin_open?: boolean;
    /** of a process that a copy of its machine continues: `bytes` of each output before the copy, which this log lacks */
    readonly output_before?: Readonly<Record<OutputStream, number>>;
  };
  /** size of the standard input of a process that has ended; its content is not stored, because it may be secret */
  readonly stdin: { readonly bytes: number };
  /** a stream exceeded its limit or that of the log; once, before the `exit` */
  readonly truncated: {
    readonly stream: OutputStream;
    readonly bytes_emitted: number;
    readonly bytes_dropped: number;
  };
  /** further output of additional processes is not stored, and their starts are shortened */
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
    /** null when the machine was killed before it could report them */
    readonly resources: ExitResources | null;
  };
  /** the first connection to a port of a host, or the first lookup of a name, with this verdict */
  readonly network: Pick<NetworkEntry, "host" | "port" | "verdict">;
  /** the network was changed while the instance ran */
  readonly network_policy: {
    readonly from: NetworkPolicy;
    readonly to: NetworkPolicy;
  } & Pick<NetworkPeriod, "connections_reset">;
  /** an image of the files of the running instance was made */
  readonly checkpoint: {
    /** id of the operation that made the image */
    readonly operation: string;
    readonly image: string;
    /** time during which the instance could not write */
    readonly pause_ms: number;
  };
  /** the first event of a fork with memory, whose processes continue those of its parent */
  readonly fork: {
    /** id of the sandbox or of the operation whose machine was forked */
    readonly parent: string;
    /** id of the parent's last event before the fork */
    readonly at_event: number;
  };
  readonly shutdown: { readonly stopped_at: string; readonly reason: ShutdownReason };
  /** another process of the service continues the instance; what happened in between follows */
  readonly adopted: {
    /** time since the last event */
    readonly after_ms: number;
    /** version of the service */
    readonly daemon: string;
  };
  /** the state of a sandbox has changed */
  readonly state: {
    /** null: it was created */
    readonly from: SandboxState | null;
    readonly to: SandboxState;
    readonly reason: string;
    /** image of its files; null: there is none yet */
    readonly head: string | null;
    /** true: the processes are kept, or continue; absent: they have ended */
    readonly memory?: true;
  };
  /** the deadline of a sandbox is near */
  readonly ends_soon: { readonly ends_at: string };
  /** `dropped` events, which the reader has not seen, are gone: the log continues with the event `first` */
  readonly dropped: { readonly first: number; readonly dropped: number };
}

/** `data` of the last event. */
export interface CompletionData {
  readonly status: EndStatus;
  readonly duration_ms: number;
  /** uuid of the image of the result */
  readonly image?: string;
  readonly error?: ErrorBody;
}

/** An event of a log. */
export interface LogEvent {
  /** number of the event, from 0, in the order of the log, without gaps; of `dropped`, the number of the last dropped event */
  readonly id: number;
  /** ns since the epoch; for an output, when its first byte reached the host */
  readonly timeNs: bigint;
  /** number of the process; null when the event is not about a process */
  readonly spid: number | null;
  readonly type: LogEventType;
  /** raw bytes of an output; JSON for all other types */
  readonly payload: Uint8Array;
}

const NS_PER_MS = 1_000_000n;

/** Wire form of a time in ns since the epoch, possibly negative: ISO 8601 in UTC with nine digits of the second. */
export function isoTimeNs(ns: bigint): string {
  const rest = ((ns % NS_PER_MS) + NS_PER_MS) % NS_PER_MS;
  const ms = new Date(msOf(ns - rest)).toISOString();
  return `${ms.slice(0, -1)}${String(rest).padStart(6, "0")}Z`;
}

/** A time in ns, in whole `milliseconds`. */
export function msOf(ns: bigint): number {
  return Number(ns / NS_PER_MS);
}

/** ns since the epoch of a time in `milliseconds`. */
export function nsOf(ms: number): bigint {
  return BigInt(ms) * NS_PER_MS;
}
