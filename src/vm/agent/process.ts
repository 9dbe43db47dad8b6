import { type Frame, packIntegers, viewOf } from "./frames.ts";
import { AgentFrame, EXIT_BYTES, ExecFlag, ExitFlag, Stream, WINDOW_BYTES_INITIAL } from "./protocol.ts";
import {
  checkLength,
  type Grant,
  type OutboundStream,
  parseError,
  ReceiveWindow,
  type Session,
  unexpected,
} from "./sessions.ts";

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

export type OutputStream = "stdout" | "stderr";

/** A terminal's size in characters. */
export interface TerminalSize {
  readonly rows: number;
  readonly columns: number;
}

export interface AgentExecSpec {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  /** hostname of its UTS namespace; ignored for a command that runs beside another */
  readonly hostname: string;
  /** time limit in `milliseconds`; 0 (none) is allowed for a command that runs beside another */
  readonly timeoutMs: number;
  /**
   * standard input, read as fast as the command reads it and abandoned when the command ends. Absent: /dev/null; on a
   * terminal, the bytes of `ExecHandle.write`. "open": the bytes of `write` until `end`. `first`: these bytes, followed by
   * the bytes of `write` until `end`.
   */
  readonly stdin?:
    | AsyncIterable<Uint8Array>
    | Iterable<Uint8Array>
    | "open"
    | { readonly first: AsyncIterable<Uint8Array> | Iterable<Uint8Array> };
  /** absent: root */
  readonly user?: { readonly uid: number; readonly gid: number };
  /** absent: the standard streams are pipes */
  readonly terminal?: TerminalSize;
}

/**
 * Receives the output of a command. A chunk is valid only during the call: a sink must copy the bytes that it keeps. While
 * a promise that it returned is pending, the command gets no more credit: at most WINDOW_BYTES_INITIAL of each stream can
 * still come. The promise must not reject.
 */
export type OutputSink = (stream: OutputStream, chunk: Uint8Array) => Promise<void> | undefined;

/** Called with the pid of a command, before its first output is passed on. */
export type StartListener = (pid: number) => void;

/** The session of a running command. */
export class ExecSession implements Session {
  readonly class = "process";
  readonly #started = Promise.withResolvers<void>();
  readonly #exit = Promise.withResolvers<AgentExit>();
  readonly #onOutput: OutputSink;
  readonly #onStart: StartListener;
  readonly #windows: ReadonlyMap<number, ReceiveWindow>;
  readonly #stdin: OutboundStream;
  /** the pending promises of the sink, and `bytes` of each stream that were received meanwhile */
  readonly #holds = new Set<Promise<void>>();
  readonly #heldBytes = new Map<number, number>();
  ended = false;
  #hasStarted = false;

  constructor(grant: Grant, stdin: OutboundStream, onOutput: OutputSink, onStart: StartListener) {
    this.#onOutput = onOutput;
    this.#onStart = onStart;
    this.#stdin = stdin;
    this.#windows = new Map(
      [Stream.stdout, Stream.stderr].map((stream) => [
        stream,
        new ReceiveWindow((bytes) => grant(stream, bytes), WINDOW_BYTES_INITIAL),
      ]),
    );
    // A caller may wait for only one of them.
    this.#started.promise.catch(() => undefined);
    this.#exit.promise.catch(() => undefined);
  }

  get started(): Promise<void> {
    return this.#started.promise;
  }

  get exit(): Promise<AgentExit> {
    return this.#exit.promise;
  }

  onFrame(frame: Frame): boolean {
    switch (frame.type) {
      case AgentFrame.started: {
        const pid = checkLength(frame, 4).getUint32(0, true);
        if (this.#hasStarted) throw unexpected(frame);
        this.#hasStarted = true;
        this.#onStart(pid);
        this.#started.resolve();
        return false;
      }
      case AgentFrame.output:
        this.#output(frame);
        return false;
      case AgentFrame.window:
        this.#stdin.credit(frame);
        return false;
      case AgentFrame.exit:
        this.#exit.resolve(parseExit(frame));
        this.#started.resolve();
        this.#end();
        return true;
      case AgentFrame.error:
        this.fail(parseError(frame));
        return true;
      default:
        throw unexpected(frame);
    }
  }

  fail(error: Error): void {
    this.#started.reject(error);
    this.#exit.reject(error);
    this.#end();
  }

  #output(frame: Frame): void {
    // An output without bytes would need no credit, so nothing would bound their number.
    if (frame.payload.byteLength <= 4) throw unexpected(frame);
    const stream = viewOf(frame.payload).getUint32(0, true);
    const window = this.#windows.get(stream);
    if (window === undefined) throw unexpected(frame);
    const bytes = frame.payload.subarray(4);
    window.receive(bytes.byteLength);
    const taken = this.#onOutput(stream === Stream.stdout ? "stdout" : "stderr", bytes);
    if (taken !== undefined) this.#hold(taken);
    if (this.#holds.size === 0) window.consume(bytes.byteLength);
    else this.#heldBytes.set(stream, (this.#heldBytes.get(stream) ?? 0) + bytes.byteLength);
  }

  /** A sink may return one promise for many chunks. */
  #hold(until: Promise<void>): void {
    if (this.#holds.has(until)) return;
    this.#holds.add(until);
    void until.then(() => {
      this.#holds.delete(until);
      if (this.#holds.size > 0 || this.ended) return;
      for (const [stream, bytes] of this.#heldBytes) this.#windows.get(stream)?.consume(bytes);
      this.#heldBytes.clear();
    });
  }

  #end(): void {
    this.ended = true;
    this.#stdin.stop();
  }
}

/** Decodes a status of wait(2): an exit code, or a signal and whether it dumped core. Null when it is neither. */
function parseWaitStatus(status: number): { exitCode: number; signal: number | null; coreDumped: boolean } | null {
  const signal = status & 0x7f;
  if (status > 0xffff || signal > SIGNALS_COUNT || (signal !== 0 && status > 0xff)) return null;
  if (signal === 0) return (status & 0x80) === 0 ? { exitCode: status >> 8, signal: null, coreDumped: false } : null;
  return { exitCode: 128 + signal, signal, coreDumped: (status & 0x80) !== 0 };
}

function parseExit(frame: Frame): AgentExit {
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

/** The payload of EXEC_OPEN. @param beside session id of the process whose namespaces the command joins, or 0 */
export function encodeExecOpen(spec: AgentExecSpec, specBytes: number, beside: number): Uint8Array {
  const flags = (spec.stdin === undefined ? 0 : ExecFlag.stdin) | (spec.terminal === undefined ? 0 : ExecFlag.terminal);
  return packIntegers(
    [32, specBytes],
    [32, flags],
    [64, spec.timeoutMs],
    [32, beside],
    [32, spec.user?.uid ?? 0],
    [32, spec.user?.gid ?? 0],
    [16, spec.terminal?.rows ?? 0],
    [16, spec.terminal?.columns ?? 0],
  );
}

/** Each text as u32 length and bytes: hostname, cwd; u32 count and arguments; u32 count and environment. */
export function encodeSpec(spec: AgentExecSpec): Uint8Array {
  const environment = Object.entries(spec.env).map(([name, value]) => `${name}=${value}`);
  const count = (list: readonly unknown[]) => packIntegers([32, list.length]);
  const text = (value: string): Uint8Array[] => {
    const bytes = Buffer.from(value, "utf8");
    return [packIntegers([32, bytes.byteLength]), bytes];
  };
  return Buffer.concat([
    ...text(spec.hostname),
    ...text(spec.cwd),
    count(spec.argv),
    ...spec.argv.flatMap(text),
    count(environment),
    ...environment.flatMap(text),
  ]);
}
