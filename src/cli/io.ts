import type { Environment } from "../config/config.ts";

/** The standard streams and signals of a command; tests have streams of their own. */
export interface Io {
  /** Resolves when the bytes are written; rejects with code EPIPE if the reader closed the stream. */
  stdout(data: Uint8Array | string): Promise<void>;
  stderr(data: Uint8Array | string): void;
  stdin(): AsyncIterable<Uint8Array>;
  readonly stdoutIsTerminal: boolean;
  readonly stderrIsTerminal: boolean;
  /** decoration that standard output and standard error may have */
  readonly stdoutLooks: Looks;
  readonly stderrLooks: Looks;
  /** Calls `handler` for SIGINT and SIGTERM until disposed. */
  onInterrupt(handler: (signal: "SIGINT" | "SIGTERM") => void): Disposable;
}

/** Decoration that a stream can show. */
export interface Looks {
  readonly colors: boolean;
  /** the last line can be drawn anew */
  readonly redraws: boolean;
}

/** Files and pipes get plain text; a terminal gets no colours with NO_COLOR, and plain text with TERM=dumb. */
export function looksOf(isTerminal: boolean, environment: Environment): Looks {
  const redraws = isTerminal && environment["TERM"] !== "dumb";
  return { colors: redraws && !environment["NO_COLOR"], redraws };
}

export function processIo(environment: Environment): Io {
  // The callback of each write reports the error; without a listener the event would end the process. An error of
  // standard error cannot be reported, and an appliance goes on without the reader of its log.
  process.stdout.on("error", () => undefined);
  process.stderr.on("error", () => undefined);
  return {
    // Bun.write would truncate a regular file for an empty write, and lose the output of other programs in it.
    stdout: (data) =>
      new Promise((resolve, reject) => {
        process.stdout.write(data, (error) => (error ? reject(error) : resolve()));
      }),
    stderr: (data) => void process.stderr.write(data),
    stdin: () => Bun.stdin.stream(),
    stdoutIsTerminal: process.stdout.isTTY === true,
    stderrIsTerminal: process.stderr.isTTY === true,
    stdoutLooks: looksOf(process.stdout.isTTY === true, environment),
    stderrLooks: looksOf(process.stderr.isTTY === true, environment),
    onInterrupt(handler) {
      const signals = ["SIGINT", "SIGTERM"] as const;
      for (const signal of signals) process.on(signal, handler);
      return {
        [Symbol.dispose]() {
          for (const signal of signals) process.off(signal, handler);
        },
      };
    },
  };
}
