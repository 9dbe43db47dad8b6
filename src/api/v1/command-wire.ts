import type { CommandInput, SpawnInput, TerminalSize } from "../../domain/spawn.ts";
import type { CommandFields, InstanceFile, Resources } from "./schema/instances.ts";

/** Converts the wire fields of a command, and ignores other fields of the body. */
export function commandOf(
  request: CommandFields & { readonly user?: string; readonly linger?: boolean },
): CommandInput {
  const { command, args, shell, env, cwd, uid, gid, user, truncate_output_at, stdin, stdin_open, pty, linger } =
    request;
  return {
    command,
    args,
    shell,
    env,
    cwd,
    uid,
    gid,
    user,
    stdin,
    truncateOutputAtBytes: truncate_output_at,
    stdinOpen: stdin_open,
    terminal: pty === undefined ? undefined : terminalOf(pty),
    lingers: linger,
  };
}

/** Converts the wire form of a terminal's size. */
export function terminalOf({ rows, cols }: { readonly rows: number; readonly cols: number }): TerminalSize {
  return { rows, columns: cols };
}

/** Resources of a request. */
export function resourcesOf({ vcpus, memory_bytes, disk_bytes }: Resources): NonNullable<SpawnInput["resources"]> {
  return { vcpus, memoryBytes: memory_bytes, diskBytes: disk_bytes };
}

/** Input files of a request. */
export function filesOf(files: Readonly<Record<string, InstanceFile>>): NonNullable<SpawnInput["files"]> {
  const entries = Object.entries(files).map(([path, { uuid, mode, uid, gid }]) => [
    path,
    { fileId: uuid, mode, uid, gid },
  ]);
  return Object.fromEntries(entries);
}
