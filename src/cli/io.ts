import { fstatSync } from "node:fs";
import { isatty } from "node:tty";
import type { Environment } from "../config/config.ts";
import { terminalModes, windowSize } from "../system/terminal.ts";

/** The standard streams and signals of a command; tests have streams of their own. */
export interface Io {
  /** Resolves when the bytes are written; rejects with code EPIPE if the reader closed the stream. */
  stdout(data: Uint8Array | string): Promise<void>;
  /** Writes messages of coppice to standard error. */
  stderr(data: Uint8Array | string): void;
  /** As `stdout`, to standard error: for output that may arrive faster than it can be written. */
  stderrBytes(data: Uint8Array): Promise<void>;
  /** Standard input to its end, or until `signal` fires. */
  stdin(signal?: AbortSignal): AsyncIterable<Uint8Array>;
  /** standard input is closed or /dev/null */
  readonly stdinIsEmpty: boolean;
  readonly stdoutIsTerminal: boolean;
  readonly stderrIsTerminal: boolean;
  /** decoration that standard output and standard error may have */
  readonly stdoutLooks: Looks;
  readonly stderrLooks: Looks;
  /** characters of a line of standard output; null: it is not a terminal */
  readonly columns: number | null;
  /** of standard input; null: it is not a terminal */
  readonly terminal: Terminal | null;
  /** false: the process ends with the command, whatever still keeps it alive. */
  lingers: boolean;
  /** Calls `handler` for each of these signals until disposed; they then do nothing else. */
  onSignal<S extends HandledSignal>(signals: readonly S[], handler: (signal: S) => void): Disposable;
}

export type HandledSignal =
  | ("SIGINT" | "SIGTERM" | "SIGHUP" | "SIGQUIT" | "SIGUSR1" | "SIGUSR2" | "SIGWINCH")
  | "SIGPWR";
/** Signals that end a command: Ctrl-C, or another program. */
export const INTERRUPTS = ["SIGINT", "SIGTERM"] as const;
/** Signals that stop the appliance: these, and the host's loss of power. */
export const STOP_SIGNALS = [...INTERRUPTS, "SIGPWR"] as const;

/** The terminal that a person types at. */
export interface Terminal {
  /** Its size now. */
  size(): { readonly rows: number; readonly cols: number };
  /** Delivers every key at once, without echo, until disposed; the end of this process restores the terminal, too. */
  raw(): Disposable;
}

/** Decoration that a stream can show. */
export interface Looks {
  readonly colors: boolean;
  /** the last line can be redrawn */
  readonly redraws: boolean;
}

/** Size of a terminal that does not report it. */
const SIZE_DEFAULT = { rows: 24, cols: 80 } as const;
const STDIN_FD = 0;

/** Files and pipes get plain text; a terminal gets no colours with NO_COLOR, and plain text with TERM=dumb. */
export function looksOf(isTerminal: boolean, environment: Environment): Looks {
  const redraws = isTerminal && environment["TERM"] !== "dumb";
  return { colors: redraws && !environment["NO_COLOR"], redraws };
}

export function processIo(environment: Environment): Io {
  // The callback of each write reports the error; without a listener the event would end the process. An error of
  // standard error cannot be reported, and an appliance continues without the reader of its log.
  process.stdout.on("error", () => undefined);
  process.stderr.on("error", () => undefined);
  return {
    stdout: (data) => written(process.stdout, data),
    stderr: (data) => void process.stderr.write(data),
    stderrBytes: (data) => written(process.stderr, data),
    stdin: standardInput,
    stdinIsEmpty: isEmpty(STDIN_FD),
    stdoutIsTerminal: process.stdout.isTTY === true,
    stderrIsTerminal: process.stderr.isTTY === true,
    stdoutLooks: looksOf(process.stdout.isTTY === true, environment),
    stderrLooks: looksOf(process.stderr.isTTY === true, environment),
    get columns() {
      return process.stdout.isTTY === true ? process.stdout.columns || SIZE_DEFAULT.cols : null;
    },
    terminal: isatty(STDIN_FD) ? { size: () => windowSize(STDIN_FD) ?? SIZE_DEFAULT, raw: rawMode } : null,
    lingers: true,
    onSignal(signals, handler) {
      // The runtime passes the name of the signal, which is one of `signals`.
      const listener = handler as (signal: NodeJS.Signals) => void;
      for (const signal of signals) process.on(signal, listener);
      return {
        [Symbol.dispose]() {
          for (const signal of signals) process.off(signal, listener);
        },
      };
    },
  };
}

const NULL_DEVICE = 0x103;

function isEmpty(fd: number): boolean {
  try {
    const file = fstatSync(fd);
    return file.isCharacterDevice() && file.rdev === NULL_DEVICE;
  } catch {
    // EBADF: it is closed.
    return true;
  }
}

/** Bun.write would truncate a regular file for an empty write, and lose the output of other programs in it. */
function written(stream: NodeJS.WriteStream, data: Uint8Array | string): Promise<void> {
  return new Promise((resolve, reject) => {
    stream.write(data, (error) => (error ? reject(error) : resolve()));
  });
}

async function* standardInput(signal?: AbortSignal): AsyncGenerator<Uint8Array, void, undefined> {
  if (signal?.aborted) return;
  const reader = Bun.stdin.stream().getReader();
  // A read of a terminal or an idle pipe may never end, and would keep the process.
  const leave = () => void reader.cancel().catch(() => undefined);
  using _leave = { [Symbol.dispose]: leave };
  signal?.addEventListener("abort", leave, { once: true });
  using _listener = { [Symbol.dispose]: () => signal?.removeEventListener("abort", leave) };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield value;
  }
}

function rawMode(): Disposable {
  const modes = terminalModes(STDIN_FD);
  modes.raw();
  // A shell that stopped this process has given the terminal its own modes.
  const again = () => modes.raw();
  process.on("SIGCONT", again);
  // Also after an uncaught exception.
  process.on("exit", modes.restore);
  return {
    [Symbol.dispose]() {
      process.off("SIGCONT", again);
      process.off("exit", modes.restore);
      modes.restore();
    },
  };
}
