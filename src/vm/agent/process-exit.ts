import type { Frame } from "./frames.ts";
import { checkLength, unexpected } from "./payload.ts";
import { EXIT_BYTES, ExitFlag } from "./protocol.ts";

const EXIT_FLAGS_ALL = ExitFlag.timedOut | ExitFlag.oomKilled;
const SIGNALS_COUNT = 64;

/** The kernel's accounting of a command and the children that it waited for. Times in µs, memory in KiB. */
export interface ProcessUsage {
  readonly userTimeUs: bigint;
  readonly systemTimeUs: bigint;
  readonly residentKibMax: bigint;
  readonly minorFaults: bigint;
  readonly majorFaults: bigint;
  readonly blocksIn: bigint;
  readonly blocksOut: bigint;
  readonly voluntarySwitches: bigint;
  readonly involuntarySwitches: bigint;
}

/** The result of a command, as the guest measured it. */
export interface AgentExit {
  /** 128+n when signal n ended the command */
  readonly exitCode: number;
  /** the signal that ended the command, or null */
  readonly signal: number | null;
  readonly coreDumped: boolean;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  readonly cpuTimeUs: bigint;
  readonly memoryPeakBytes: bigint;
  readonly wallUs: bigint;
  readonly usage: ProcessUsage;
}

/** Decodes a status of wait(2): an exit code, or a signal and whether it dumped core. Null when it is neither. */
function parseWaitStatus(status: number): { exitCode: number; signal: number | null; coreDumped: boolean } | null {
  const signal = status & 0x7f;
  if (status > 0xffff || signal > SIGNALS_COUNT || (signal !== 0 && status > 0xff)) return null;
  if (signal === 0) return (status & 0x80) === 0 ? { exitCode: status >> 8, signal: null, coreDumped: false } : null;
  return { exitCode: 128 + signal, signal, coreDumped: (status & 0x80) !== 0 };
}

/** Decodes an EXIT. @throws AgentProtocolError */
export function parseExit(frame: Frame): AgentExit {
  const view = checkLength(frame, EXIT_BYTES);
  const flags = view.getUint32(0, true);
  const ended = parseWaitStatus(view.getUint32(32, true));
  if ((flags & ~EXIT_FLAGS_ALL) !== 0 || ended === null || view.getUint32(36, true) !== 0) throw unexpected(frame);
  if (ended.exitCode !== view.getUint32(4, true)) throw unexpected(frame);
  const number = (offset: number): bigint => view.getBigUint64(offset, true);
  return {
    ...ended,
    timedOut: (flags & ExitFlag.timedOut) !== 0,
    oomKilled: (flags & ExitFlag.oomKilled) !== 0,
    cpuTimeUs: number(8),
    memoryPeakBytes: number(16),
    wallUs: number(24),
    usage: {
      userTimeUs: number(40),
      systemTimeUs: number(48),
      residentKibMax: number(56),
      minorFaults: number(64),
      majorFaults: number(72),
      blocksIn: number(80),
      blocksOut: number(88),
      voluntarySwitches: number(96),
      involuntarySwitches: number(104),
    },
  };
}
