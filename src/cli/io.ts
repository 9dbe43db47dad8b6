import type { Environment } from "../config/config.ts";

/** The streams of a command, so that a test can hold the other ends. */
export interface Io {
  /** Resolves when the bytes are out; rejects with code EPIPE when the reader is gone. */
  stdout(data: Uint8Array | string): Promise<void>;
  stderr(data: Uint8Array | string): void;
  stdin(): AsyncIterable<Uint8Array>;
  readonly stdoutIsTerminal: boolean;
  readonly stderrIsTerminal: boolean;
  /** what standard output and error may be decorated with */
  readonly stdoutLooks: Looks;
  readonly stderrLooks: Looks;
  /** Calls `handler` for SIGINT and SIGTERM until disposed. */
  onInterrupt(handler: (signal: "SIGINT" | "SIGTERM") => void): Disposable;
}

/** What a stream can show beside text. */
export interface Looks {
  readonly colors: boolean;
  /** the last line can be drawn anew */
  readonly redraws: boolean;
}

/** Files and pipes get plain text, and so does a terminal where NO_COLOR or TERM=dumb asks for it. */
export function looksOf(isTerminal: boolean, environment: Environment): Looks {
  const redraws = isTerminal && environment["TERM"] !== "dumb";
  return { colors: redraws && !environment["NO_COLOR"], redraws };
}

export function processIo(environment: Environment): Io {
  // The callback of each write tells; without a listener the event would end the process. Of standard error nobody can
  // be told anything, and an appliance goes on when the reader of its log is gone.
  process.stdout.on("error", () => undefined);
  process.stderr.on("error", () => undefined);
  return {
    // Not Bun.write: it truncates a regular file when there is nothing to write, and so loses what others wrote there.
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
