import { type LogEventData, Spid } from "../../../domain/log-event.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../../domain/output.ts";
import type { CommandEnd, LogSummary, RunningInLog } from "../../../storage/events/log-summary.ts";
import type { StreamBytes } from "../../../storage/events/process-outputs.ts";
import { OutputGapError } from "../../../vm/agent/errors.ts";
import type { AgentExit } from "../../../vm/agent/process-exit.ts";
import { PROCESSES_COUNT_MAX } from "../../../vm/agent/protocol.ts";
import type { SessionReport } from "../../../vm/agent/reconnect.ts";
import type { LoggedProcess, LoggedStart, ProcessLogRecord } from "../instance-process.ts";

/** The log's part of the state of the processes of an instance. */
export interface LoggedProcesses {
  /** of the log of its operation, which has the command */
  readonly command: Pick<LogSummary, "running" | "isCapped">;
  /** of the log of its additional processes; that of a sandbox */
  readonly others: Pick<LogSummary, "running" | "isCapped">;
}

/** A process that both the agent and the log have. */
export interface AdoptedProcess {
  readonly report: SessionReport;
  /** position of its log; `start` is null for a command whose start is not logged yet */
  readonly log: Omit<ProcessLogRecord, "start" | keyof LoggedProcess> & { readonly start: LoggedStart | null };
  readonly truncateOutputAtBytes: number | null;
  /** true: its caller has left before the first input was complete, so the rest is lost */
  readonly isCut: boolean;
  /** whether it was started with an input that stays open after its first input */
  readonly keepsInput: boolean;
}

/**
 * Finds the processes that continue. Those of the agent that are not among them are to be killed: their callers never got an
 * answer, or their ends are logged.
 * @param commandLimitBytes limit of each output of the command
 * @throws OutputGapError
 */
export function adoptedProcesses(
  reports: readonly SessionReport[],
  logged: LoggedProcesses,
  command: { readonly limitBytes: number | null; readonly keepsInput: boolean },
): AdoptedProcess[] {
  return reports.flatMap((report): AdoptedProcess[] => {
    const { spid } = report;
    if (spid === Spid.command) return [adopted(report, logged.command, command)];
    const start = logged.others.running.get(spid)?.start;
    if (!start) return [];
    const { truncate_output_at: limitBytes, stdin_bytes, stdin_open } = start.data;
    const keepsInput = stdin_bytes === undefined ? report.hasInput : stdin_open === true;
    return [adopted(report, logged.others, { limitBytes, keepsInput })];
  });
}

function adopted(
  report: SessionReport,
  { running, isCapped }: LoggedProcesses["others"],
  { limitBytes, keepsInput }: { readonly limitBytes: number | null; readonly keepsInput: boolean },
): AdoptedProcess {
  const { spid, stdinTakenBytes: stdinBytes } = report;
  const inLog: RunningInLog = running.get(spid) ?? { start: null, keptBytes: { stdout: 0, stderr: 0 } };
  const sizes = (stream: OutputStream): StreamBytes => {
    const kept = inLog.keptBytes[stream];
    const from = report.keptFrom[stream] - (inLog.start?.data.output_before?.[stream] ?? 0);
    // The rest of an output that the log has no room for is only counted.
    const isFull = kept >= (limitBytes ?? Number.POSITIVE_INFINITY) || isCapped;
    if (from > kept && !isFull) throw new OutputGapError(`the log lacks ${from - kept} bytes of process ${spid}`);
    return { kept, dropped: Math.max(0, from - kept) };
  };
  const { start } = inLog;
  const [stdout, stderr] = OUTPUT_STREAMS.map(sizes) as [StreamBytes, StreamBytes];
  const firstBytes = spid === Spid.command ? 0 : (start?.data.stdin_bytes ?? 0);
  return {
    report,
    log: {
      pid: start?.data.pid ?? report.pid ?? 0,
      start: start === null ? null : startOf(start.data),
      started: start === null ? null : { ms: start.ms, event: start.event },
      stdinBytes,
      stdout,
      stderr,
    },
    truncateOutputAtBytes: limitBytes,
    isCut: stdinBytes < firstBytes && !report.inputEnded && !report.finished,
    keepsInput,
  };
}

/**
 * Time since the start of the command, in `milliseconds`, at least as the log has it: a guest that owns its agent would report
 * none at each restart, and get its whole time limit again.
 */
export function ranMsOf(
  { ranMs }: Pick<SessionReport, "ranMs">,
  start: Pick<NonNullable<RunningInLog["start"]>, "ms"> | null,
  now = Date.now(),
): number {
  return Math.max(ranMs, start === null ? 0 : now - start.ms);
}

/**
 * The largest number of a process. The log lacks those whose starts were under way, and a report may name numbers that no
 * service gave.
 */
export function spidLastOf(loggedLast: number, reports: readonly Pick<SessionReport, "spid">[]): number {
  const spids = reports.map(({ spid }) => spid).filter((spid) => spid <= loggedLast + PROCESSES_COUNT_MAX);
  return Math.max(loggedLast, ...spids);
}

function startOf({ pid: _pid, ...start }: LogEventData["spawn"]): LoggedStart {
  return start;
}

/** The end of a command as its agent reported it, from the log. */
export function exitOf({ exit }: CommandEnd): AgentExit {
  const { resources } = exit;
  return {
    exitCode: exit.exit_code,
    signal: exit.signal,
    timedOut: exit.timed_out,
    oomKilled: exit.oom_killed,
    coreDumped: exit.core_dump,
    wallUs: BigInt(exit.duration_ms) * 1000n,
    cpuTimeUs: BigInt(exit.cpu_time_ms) * 1000n,
    memoryPeakBytes: BigInt(exit.memory_bytes),
    usage: {
      userTimeUs: BigInt(resources?.user_time_us ?? 0),
      systemTimeUs: BigInt(resources?.sys_time_us ?? 0),
      residentKibMax: BigInt(resources?.max_rss_kb ?? 0),
      minorFaults: BigInt(resources?.minor_faults ?? 0),
      majorFaults: BigInt(resources?.major_faults ?? 0),
      voluntarySwitches: BigInt(resources?.voluntary_ctx_switches ?? 0),
      involuntarySwitches: BigInt(resources?.involuntary_ctx_switches ?? 0),
      blocksIn: BigInt(resources?.block_input_ops ?? 0),
      blocksOut: BigInt(resources?.block_output_ops ?? 0),
    },
  };
}
