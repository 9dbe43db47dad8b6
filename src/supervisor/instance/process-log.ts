import { type LogEventData, msOf, Spid } from "../../domain/log-event.ts";
import { SIGKILL_SIGNAL } from "../../domain/signals.ts";
import type { EventLog } from "../../storage/events/event-logs.ts";
import type { StreamBytes } from "../../storage/events/process-outputs.ts";
import type { EventWriter } from "../../storage/events/writer.ts";
import type { AgentExecSpec, AgentExit } from "../../vm/agent/agent.ts";
import type { OutputStream } from "../../vm/agent/process.ts";
import type { LoggedProcess, LoggedStart, ProcessLogRecord, ProcessSink } from "./instance-process.ts";

/** Largest part of a command line that is logged, in characters: an instance may start tens of thousands of processes. */
const COMMAND_LINE_CHARACTERS_MAX = 1024;
/** Largest part of a command line, and of a directory, in a log that is full. */
const SHORT_CHARACTERS_MAX = 64;

/** The host's figures of a process that was killed with its machine. */
export interface CutOffFigures {
  readonly exitCode: number;
  readonly ranMs: number;
  readonly cpuTimeMs: number;
  readonly memoryBytes: number;
}

/** Logs the start, the output and the end of a process of an instance. */
export class ProcessLog {
  readonly #events: EventLog;
  readonly #process: LoggedProcess;
  readonly #outputs: ReturnType<EventWriter["outputs"]>;
  #pid: number;
  #start: ProcessLogRecord["started"];
  #stdinBytes: number;
  #isAbandoned = false;

  /** @param from an earlier log of the process to continue */
  constructor(events: EventLog, process: LoggedProcess, from?: Omit<ProcessLogRecord, "start" | keyof LoggedProcess>) {
    this.#events = events;
    this.#process = process;
    this.#pid = from?.pid ?? 0;
    this.#start = from?.started ?? null;
    this.#stdinBytes = from?.stdinBytes ?? 0;
    const { spid, truncateOutputAtBytes } = process;
    // The outputs of the command are part of the result.
    const limitBytes = truncateOutputAtBytes ?? Number.POSITIVE_INFINITY;
    this.#outputs = events.outputs(spid, limitBytes, spid === Spid.command, from);
  }

  /** Sizes of a stream so far. */
  bytes(stream: OutputStream): StreamBytes {
    return this.#outputs.bytes(stream);
  }

  /**
   * A sink that logs the start, the output and the end of the process.
   * @param input of an additional process: its input comes from a caller, who may leave
   */
  sink(
    spec: Pick<AgentExecSpec, "argv" | "cwd" | "timeoutMs" | "user" | "userName" | "terminal">,
    input: Pick<LoggedStart, "stdin_bytes" | "stdin_open"> = {},
  ): ProcessSink {
    return this.resume({ ...this.#startOf(spec), ...input });
  }

  /**
   * The same for a process whose sink was made earlier. The sink lives as long as the process, which may have megabytes of
   * arguments and environment. So the sink holds only the logged part of them.
   */
  resume(start: LoggedStart): ProcessSink {
    // In the log of a copy of its machine, the process begins with the copy.
    if (this.#pid !== 0 && this.#start === null) this.#started(this.#pid, start);
    return {
      started: (pid) => this.#started(pid, start),
      output: (stream, chunk) => this.#outputs.write(stream, chunk),
      onInput: (bytes) => this.addInput(bytes),
      bytes: (stream) => this.bytes(stream),
      record: () => ({
        ...this.#process,
        start,
        pid: this.#pid,
        started: this.#start,
        stdinBytes: this.#stdinBytes,
        stdout: this.bytes("stdout"),
        stderr: this.bytes("stderr"),
      }),
      exited: (exit) => this.#exited(exit),
    };
  }

  #started(pid: number, start: LoggedStart): void {
    this.#pid = pid;
    const data = { pid, ...(this.#events.isFull ? shortened(start) : start) };
    const event = this.#events.append(this.#process.spid, "spawn", data);
    this.#start = { ms: msOf(this.#events.latestNs), event };
  }

  #startOf(spec: Parameters<ProcessLog["sink"]>[0]): LoggedStart {
    const { uid, gid } = spec.user ?? { uid: 0, gid: 0 };
    const { timeoutMs, terminal, userName } = spec;
    return {
      ...loggedCommand(spec.argv),
      cwd: spec.cwd,
      uid,
      gid,
      ...(userName === undefined ? {} : { user: userName }),
      timeout: timeoutMs === 0 ? null : timeoutMs / 1000,
      truncate_output_at: this.#process.truncateOutputAtBytes,
      ...(terminal === undefined ? {} : { pty: { rows: terminal.rows, cols: terminal.columns } }),
    };
  }

  /** Counts bytes of standard input. */
  addInput(bytes: number): void {
    this.#stdinBytes += bytes;
  }

  /**
   * Counts the bytes of standard input that the process receives from a stream.
   * @param sentBytes size of the input before them. An earlier log has not counted a chunk that was sent only in part.
   */
  async *counting(
    stdin: AsyncIterable<Uint8Array>,
    sentBytes = this.#stdinBytes,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    this.#stdinBytes = sentBytes;
    for await (const chunk of stdin) {
      yield chunk;
      this.addInput(chunk.byteLength);
    }
  }

  /** From now on a report of the agent is too late: `cutOff` logs the end. */
  abandon(): void {
    this.#isAbandoned = true;
  }

  /** Logs the end of the process, as the agent reported it. */
  #exited(exit: AgentExit): Promise<void> | undefined {
    if (this.#isAbandoned) return undefined;
    const { usage } = exit;
    this.#ended({
      pid: this.#pid,
      exit_code: exit.exitCode,
      signal: exit.signal,
      timed_out: exit.timedOut,
      oom_killed: exit.oomKilled,
      core_dump: exit.coreDumped,
      duration_ms: Number(exit.wallUs / 1000n),
      cpu_time_ms: Number(exit.cpuTimeUs / 1000n),
      memory_bytes: Number(exit.memoryPeakBytes),
      resources: {
        user_time_us: Number(usage.userTimeUs),
        sys_time_us: Number(usage.systemTimeUs),
        max_rss_kb: Number(usage.residentKibMax),
        minor_faults: Number(usage.minorFaults),
        major_faults: Number(usage.majorFaults),
        voluntary_ctx_switches: Number(usage.voluntarySwitches),
        involuntary_ctx_switches: Number(usage.involuntarySwitches),
        block_input_ops: Number(usage.blocksIn),
        block_output_ops: Number(usage.blocksOut),
      },
    });
    return this.#events.written();
  }

  /** Logs the end of a process that exceeded its time limit, and that the agent did not report. */
  cutOff({ exitCode, ranMs, cpuTimeMs, memoryBytes }: CutOffFigures): void {
    this.#ended({
      pid: this.#pid,
      exit_code: exitCode,
      signal: SIGKILL_SIGNAL,
      timed_out: true,
      oom_killed: false,
      core_dump: false,
      duration_ms: Math.round(ranMs),
      cpu_time_ms: cpuTimeMs,
      memory_bytes: memoryBytes,
      resources: null,
    });
  }

  #ended(exit: LogEventData["exit"]): void {
    const { spid } = this.#process;
    if (this.#stdinBytes > 0) this.#events.append(spid, "stdin", { bytes: this.#stdinBytes });
    this.#outputs.end();
    this.#events.append(spid, "exit", exit);
  }
}

/** A start that takes little space in a log. */
function shortened(start: LoggedStart): LoggedStart {
  const { command, args, cwd, args_truncated, ...rest } = start;
  const isCut = args_truncated === true || cwd.length > SHORT_CHARACTERS_MAX;
  return {
    ...loggedCommand([command, ...args], SHORT_CHARACTERS_MAX),
    ...(isCut ? { args_truncated: true } : {}),
    cwd: cwd.slice(0, SHORT_CHARACTERS_MAX),
    ...rest,
  };
}

function loggedCommand(
  argv: readonly string[],
  charactersMax = COMMAND_LINE_CHARACTERS_MAX,
): Pick<LogEventData["spawn"], "command" | "args" | "args_truncated"> {
  const [command = "", ...args] = argv;
  const words: string[] = [];
  let left = charactersMax;
  for (const text of [command, ...args]) {
    if (left <= 0) break;
    words.push(text.slice(0, left));
    // Empty arguments count, too.
    left -= text.length + 1;
  }
  const [loggedName = "", ...loggedArgs] = words;
  const isWhole = words.length === argv.length && left >= -1;
  return { command: loggedName, args: loggedArgs, ...(isWhole ? {} : { args_truncated: true }) };
}
