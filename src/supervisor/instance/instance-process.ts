import { ApiError } from "../../domain/errors.ts";
import { type LogEventData, Spid } from "../../domain/log-event.ts";
import type { OutputSizes, StreamBytes } from "../../storage/events/process-outputs.ts";
import type {
  AgentExecSpec,
  AgentExit,
  ResumeOptions as AgentOptions,
  ExecHandle,
  ResumedAgent,
} from "../../vm/agent/agent.ts";
import type { InputBytes } from "../../vm/agent/exec-spec.ts";
import type { GuestNetwork } from "../../vm/agent/guest-network.ts";
import type { OutputSink, OutputStream, ProcessEnds, StartListener } from "../../vm/agent/process.ts";
import type { AgentRecord } from "../../vm/agent/record.ts";
import type { GuestDisks } from "../machines/steps.ts";
import type { ProcessInput } from "./process-input.ts";
import type { ProcessTaps, TapsRecord } from "./process-taps.ts";

/**
 * A process of an instance. Its promises reject with an ApiError that says what failed in the guest; they need not be
 * awaited.
 */
export interface InstanceProcess extends Pick<ExecHandle, "resize" | "limit"> {
  /** number of the process within its instance, in the order of the starts; that of a refused start is used again */
  readonly spid: number;
  readonly hasTerminal: boolean;
  readonly input: ProcessInput;
  readonly taps: ProcessTaps;
  /** Rejects with `invalid_path` when the working directory cannot be entered. */
  readonly started: Promise<void>;
  readonly exit: Promise<AgentExit>;
  /** As `ExecHandle.signal`. @throws ApiError `too_many_requests` when too many signals wait for the guest */
  readonly signal: ExecHandle["signal"];
  /**
   * Resolves when the guest has received all input that was written before, or the process has ended: no restart loses it.
   * @throws the reason of `signal`
   */
  receipt(signal: AbortSignal): Promise<void>;
  /** Its start and the sizes of its output, as logged. */
  logged(): ProcessLogRecord;
  record(): InstanceProcessRecord;
}

/** A process with a log. */
export interface LoggedProcess {
  readonly spid: number;
  /** limit of each stream, in `bytes`; null: no limit but that of the log */
  readonly truncateOutputAtBytes: number | null;
}

/** The start of a process, as logged. */
export type LoggedStart = Omit<LogEventData["spawn"], "pid">;

/** Position of the log of a process, as plain data. */
export interface ProcessLogRecord extends LoggedProcess, OutputSizes {
  readonly start: LoggedStart;
  readonly pid: number;
  /** when it started, in `milliseconds` since the epoch, and the id of that event; null before that */
  readonly started: { readonly ms: number; readonly event: number } | null;
  readonly stdinBytes: number;
}

/**
 * Position in each output of a process: the size of what its log has, what that has dropped, and what it lacks because the process
 * is older.
 */
export function outputPosition(
  { stdout, stderr }: OutputSizes,
  before: LoggedStart["output_before"],
): Record<OutputStream, number> {
  return {
    stdout: (before?.stdout ?? 0) + stdout.kept + stdout.dropped,
    stderr: (before?.stderr ?? 0) + stderr.kept + stderr.dropped,
  };
}

/** A process of an instance as plain data. `InstanceRecord.agent` has its session. */
export interface InstanceProcessRecord {
  readonly spid: number;
  readonly session: number;
  readonly cwd: string;
  /** whether it was started with an input that stays open */
  readonly keepsInput: boolean;
  readonly log: ProcessLogRecord;
  readonly taps: TapsRecord;
}

/** A running instance as plain data, without its machine. */
export interface InstanceRecord {
  readonly agent: AgentRecord;
  readonly disks: GuestDisks | null;
  readonly spidLast: number;
  /** numbers below `spidLast` whose processes were refused */
  readonly refused: readonly number[];
  readonly processes: readonly InstanceProcessRecord[];
}

/** The host's side of an instance that is resumed from a record. */
export interface ResumeOptions {
  /** continues the agent of the record, in the same machine or in a copy of it, and ends its hold */
  readonly continueAgent: (record: AgentRecord, options: AgentOptions) => Promise<ResumedAgent>;
  /** continues the numbers of the processes */
  readonly numbers?: Pick<NumbersOptions, "onNumber"> | undefined;
  readonly network: GuestNetwork | null;
  readonly sinkOf: (log: ProcessLogRecord) => ProcessSink;
  /** resolves when the output that was received before the record is stored */
  readonly stored: Promise<void>;
  /** Returns the rest of the command's first input, from an offset in `bytes`. */
  readonly commandInput: (from: number) => InputBytes;
}

/** Receives the start and the output of a process, and its end before it is announced. */
export interface ProcessSink {
  readonly started: StartListener;
  readonly output: OutputSink;
  /** called with the number of bytes after each write to standard input */
  readonly onInput: (bytes: number) => void;
  /** returns the sizes of the logged and of the dropped output of a stream so far */
  readonly bytes: (stream: OutputStream) => StreamBytes;
  readonly record: () => ProcessLogRecord;
  /** returns a promise that resolves when the end is in the log; the agent keeps it until then */
  readonly exited: NonNullable<ProcessEnds["onExit"]>;
}

/** A process whose start was requested. */
export interface StartedProcess
  extends Pick<InstanceProcess, "hasTerminal">,
    Pick<InstanceProcessRecord, "cwd" | "keepsInput"> {
  readonly handle: ExecHandle;
  /** false: its input was closed by an earlier object */
  readonly isInputOpen: boolean;
  readonly sink: ProcessSink;
  readonly taps: ProcessTaps;
}

/** The fields of a started process that its specification determines. */
export function startedFrom(
  spec: AgentExecSpec,
): Pick<StartedProcess, "cwd" | "hasTerminal" | "keepsInput" | "isInputOpen"> {
  const { cwd, stdin, terminal } = spec;
  const keepsInput = stdin === "open" || (stdin !== undefined && "first" in stdin);
  return { cwd, hasTerminal: terminal !== undefined, keepsInput, isInputOpen: keepsInput };
}

/** The receivers of a process whose output is also copied to the taps. */
export function tapped({ started, output, exited }: ProcessSink, taps: ProcessTaps): ProcessEnds {
  const onOutput: OutputSink = (stream, chunk) => {
    const stored = output(stream, chunk);
    taps.push(stream, chunk);
    return stored;
  };
  return { onOutput, onStart: started, onExit: exited, readers: taps };
}

/** Largest number of processes that an instance can start over its whole life. */
const PROCESSES_COUNT_MAX = 65_536;

export interface NumbersOptions {
  /** the last number that an earlier instance with the same log may have used */
  readonly last?: number;
  /** called with a number that is about to be used for the first time */
  readonly onNumber?: (spid: number) => void;
}

/** The numbers of an instance's processes, in the order of the starts. Those of refused starts are used again. */
export class ProcessNumbers {
  readonly #first: number;
  readonly #onNumber: (spid: number) => void;
  #last: number;
  readonly #refused: Set<number>;

  constructor(
    { last = Spid.command, onNumber = () => undefined }: NumbersOptions = {},
    refused: Iterable<number> = [],
  ) {
    this.#first = last;
    this.#last = last;
    this.#onNumber = onNumber;
    this.#refused = new Set(refused);
  }

  get last(): number {
    return this.#last;
  }

  /** Numbers below `last` whose starts were refused. */
  get refused(): readonly number[] {
    return [...this.#refused];
  }

  /** @throws ApiError `conflict` when none is left */
  take(): number {
    const [refused] = this.#refused;
    if (refused !== undefined) {
      this.#refused.delete(refused);
      return refused;
    }
    if (this.#last - this.#first >= PROCESSES_COUNT_MAX - 1) {
      throw new ApiError("conflict", `the instance has started ${PROCESSES_COUNT_MAX} processes, which is the limit`);
    }
    this.#onNumber(this.#last + 1);
    this.#last += 1;
    return this.#last;
  }

  refuse(spid: number): void {
    this.#refused.add(spid);
  }

  /** True when a process has, or had, the number. */
  has(spid: number): boolean {
    return spid >= Spid.command && spid <= this.#last && !this.#refused.has(spid);
  }
}
