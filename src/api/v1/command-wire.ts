import type { CommandInput, TerminalSize } from "../../domain/spawn.ts";
import type { CommandFields } from "./schema/instances.ts";

/** Converts the wire fields of a command, and ignores other fields of the body. */
export function commandOf(request: CommandFields): CommandInput {
  const { command, args, shell, env, cwd, uid, gid, truncate_output_at, stdin, stdin_open, pty } = request;
  return {
    command,
    args,
    shell,
    env,
    cwd,
    uid,
    gid,
    stdin,
    truncateOutputAtBytes: truncate_output_at,
    stdinOpen: stdin_open,
    terminal: pty === undefined ? undefined : terminalOf(pty),
  };
}

/** Converts the wire form of a terminal's size. */
export function terminalOf({ rows, cols }: { readonly rows: number; readonly cols: number }): TerminalSize {
  return { rows, columns: cols };
}
