import type { TerminalSize } from "../../domain/spawn.ts";
import type { CommandFields } from "./schema/instances.ts";

/** Fields of a command as the use cases call them; other fields stay as they are. */
export function commandOf<Request extends CommandFields>({ truncate_output_at, stdin_open, pty, ...request }: Request) {
  return {
    ...request,
    truncateOutputAtBytes: truncate_output_at,
    stdinOpen: stdin_open,
    terminal: pty === undefined ? undefined : terminalOf(pty),
  };
}

/** A terminal's size, which the wire gives in `rows` and `cols`. */
export function terminalOf({ rows, cols }: { readonly rows: number; readonly cols: number }): TerminalSize {
  return { rows, columns: cols };
}
