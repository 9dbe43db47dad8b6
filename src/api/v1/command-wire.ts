import type { TerminalSize } from "../../domain/spawn.ts";
import type { CommandFields } from "./schema/instances.ts";

/** Converts the wire fields of a command to those of the use cases; other fields stay as they are. */
export function commandOf<Request extends CommandFields>({ truncate_output_at, stdin_open, pty, ...request }: Request) {
  return {
    ...request,
    truncateOutputAtBytes: truncate_output_at,
    stdinOpen: stdin_open,
    terminal: pty === undefined ? undefined : terminalOf(pty),
  };
}

/** Converts the wire form of a terminal's size. */
export function terminalOf({ rows, cols }: { readonly rows: number; readonly cols: number }): TerminalSize {
  return { rows, columns: cols };
}
