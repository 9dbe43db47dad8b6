import type { Environment } from "../../config/config.ts";
import { given } from "../../domain/given.ts";
import { UsageError } from "../command.ts";
import type { Io } from "../io.ts";
import type { InputSource } from "./session.ts";

/** Size of a terminal without a viewer. */
const SIZE_DEFAULT = { rows: 24, cols: 80 } as const;
const TERM_DEFAULT = "xterm";

/** The connection of the streams of a process with those of coppice. */
export interface Streams {
  readonly input: InputSource;
  /** the process has a terminal */
  readonly hasTerminal: boolean;
  /** fields of the request that starts the process */
  readonly fields: {
    readonly stdin_open?: true;
    readonly pty?: { readonly rows: number; readonly cols: number };
  };
}

export interface StreamValues {
  readonly interactive?: boolean | undefined;
  readonly tty?: boolean | undefined;
  /** the process is left as soon as it runs: its input stays open only with -i */
  readonly detach?: boolean | undefined;
}

/** @throws UsageError for -t -i without a terminal */
export function streamsOf({ interactive = false, tty = false, detach = false }: StreamValues, io: Io): Streams {
  const { terminal } = io;
  if (tty && interactive && terminal === null) {
    throw new UsageError("standard input is not a terminal: leave out -t, or -i");
  }
  if (!tty) {
    const input = interactive || (terminal === null && !io.stdinIsEmpty && !detach);
    return { input: input ? "stream" : "none", hasTerminal: false, fields: input ? { stdin_open: true } : {} };
  }
  const pty = terminal?.size() ?? SIZE_DEFAULT;
  const fields = interactive ? { pty, stdin_open: true as const } : { pty };
  return { input: interactive ? "keys" : "none", hasTerminal: true, fields };
}

/** Variables of a process, with the type of its terminal; given variables win. */
export function withTerm(
  env: Readonly<Record<string, string>> | undefined,
  { hasTerminal }: Streams,
  environment: Environment,
): { readonly env?: Readonly<Record<string, string>> } {
  if (!hasTerminal) return given({ env });
  return { env: { TERM: environment["TERM"] || TERM_DEFAULT, ...env } };
}
