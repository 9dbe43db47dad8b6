import type { LogEventData } from "../../domain/log-event.ts";
import type { StoredInstanceResult } from "../../domain/operation.ts";
import { SIGKILL_SIGNAL } from "../../domain/signals.ts";

const SECOND_MS = 1000;
const KIB_BYTES = 1024;
/** An unknown or absent number. */
const NONE_DEFAULT = -1;

type ExitData = LogEventData["exit"];

/** How a process ended, in this dialect: either `code` or `signal` is -1. */
export interface Ending {
  readonly code: number;
  readonly signal: number;
}

/** Separates the exit code of a process from the signal that ended it. */
export function endingOf({
  exit_code,
  signal,
  timed_out,
}: Pick<ExitData, "exit_code" | "signal" | "timed_out">): Ending {
  const ended = signal ?? (timed_out ? SIGKILL_SIGNAL : NONE_DEFAULT);
  return { code: ended === NONE_DEFAULT ? exit_code : NONE_DEFAULT, signal: ended };
}

/** The `state` of a process. Code and signal are -1 when its end is unknown. */
export function stateOf(pid: number, exit: ExitData | null) {
  const { code, signal } = exit === null ? { code: NONE_DEFAULT, signal: NONE_DEFAULT } : endingOf(exit);
  return {
    exit_code: code,
    signal,
    timed_out: exit?.timed_out ?? false,
    pid,
    stopped: false,
    continued: false,
    core_dump: exit?.core_dump ?? false,
  };
}

/** The `resources` that a process used; zero when its end is unknown, and for values that the guest does not measure. */
export function resourcesOf(exit: ExitData | null) {
  const used = usageOf(exit);
  const elapsedSeconds = (exit?.duration_ms ?? 0) / SECOND_MS;
  return {
    elapsed_time: elapsedSeconds,
    monotonic_time: elapsedSeconds,
    user_cpu_time: used.user_time_us / 1e6,
    system_cpu_time: used.sys_time_us / 1e6,
    max_rss: used.max_rss_kb,
    cost: 0,
    block_input: used.block_input_ops,
    block_output: used.block_output_ops,
    involuntary_switches: used.involuntary_ctx_switches,
    voluntary_switches: used.voluntary_ctx_switches,
    page_faults: used.minor_faults,
    page_faults_io: used.major_faults,
    shared_memory: used.shared_memory,
    unshared_memory: used.unshared_memory,
    signals: used.signals_received,
    swaps: used.swaps,
  };
}

/** The `resources` of an `exit` event. A process that was killed with its machine has only the host's figures. */
export function usageOf(exit: ExitData | null) {
  return {
    user_time_us: (exit?.cpu_time_ms ?? 0) * 1000,
    sys_time_us: 0,
    max_rss_kb: Math.ceil((exit?.memory_bytes ?? 0) / KIB_BYTES),
    shared_memory: 0,
    unshared_memory: 0,
    swaps: 0,
    minor_faults: 0,
    major_faults: 0,
    voluntary_ctx_switches: 0,
    involuntary_ctx_switches: 0,
    block_input_ops: 0,
    block_output_ops: 0,
    ipc_msgs_sent: 0,
    ipc_msgs_received: 0,
    signals_received: 0,
    ...exit?.resources,
  };
}

/** The end of a command from the operation's result, when the log of the operation lacks it. */
export function exitOfResult(result: StoredInstanceResult, durationMs: number): ExitData {
  const { exit_code, timed_out, oom_killed = false, cpu_time_ms, memory_bytes } = result;
  return {
    pid: 0,
    exit_code,
    signal: null,
    timed_out,
    oom_killed,
    core_dump: false,
    duration_ms: durationMs,
    cpu_time_ms,
    memory_bytes,
    resources: null,
  };
}
