import { packIntegers } from "./frames.ts";
import { ExecFlag } from "./protocol.ts";

/** Bytes for standard input, in order. */
export type InputBytes = AsyncIterable<Uint8Array> | Iterable<Uint8Array>;

/** A terminal's size in characters. */
export interface TerminalSize {
  readonly rows: number;
  readonly columns: number;
}

export interface AgentExecSpec {
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  /** hostname of its UTS namespace; ignored for a command with a target */
  readonly hostname: string;
  /** true: nothing is executed; the namespaces of the command last until the host sends it a signal */
  readonly isIdle?: boolean;
  /** true: what the command leaves behind stays, until the target ends; ignored for a command without a target */
  readonly lingers?: boolean;
  /** time limit in `milliseconds`; 0 (none) is allowed for a command with a target, and an idle one */
  readonly timeoutMs: number;
  /**
   * standard input, read as fast as the command reads it and abandoned when the command ends. Absent: /dev/null; on a
   * terminal, the bytes of `ExecHandle.write`. "open": the bytes of `write` until `end`. `first`: these bytes, followed by
   * the bytes of `write` until `end`.
   */
  readonly stdin?: InputBytes | "open" | { readonly first: InputBytes };
  /** absent: root; without supplementary groups */
  readonly user?: { readonly uid: number; readonly gid: number };
  /**
   * a user that the guest resolves, in place of `user`: a name or number, optionally with `:` and a group. The command gets its
   * groups, HOME, SHELL, USER and LOGNAME, unless `env` has them, and its home for the working directory "". Unknown: AgentError
   * ENOENT
   */
  readonly userName?: string;
  /** absent: the standard streams are pipes */
  readonly terminal?: TerminalSize;
}

/**
 * The payload of EXEC_OPEN.
 * @param target session id of the process whose namespaces the command joins, or 0
 * @param tag the host's number of the command, or 0
 */
export function encodeExecOpen(spec: AgentExecSpec, specBytes: number, target: number, tag: number): Uint8Array {
  const streams =
    (spec.stdin === undefined ? 0 : ExecFlag.stdin) | (spec.terminal === undefined ? 0 : ExecFlag.terminal);
  const linger = spec.lingers === true && target !== 0 ? ExecFlag.linger : 0;
  const flags = spec.isIdle === true ? ExecFlag.idle : streams | linger;
  const user = spec.userName === undefined ? spec.user : undefined;
  return packIntegers(
    [32, specBytes],
    [32, flags],
    [64, spec.timeoutMs],
    [32, target],
    [32, user?.uid ?? 0],
    [32, user?.gid ?? 0],
    [16, spec.terminal?.rows ?? 0],
    [16, spec.terminal?.columns ?? 0],
    [32, tag],
  );
}

/** Each text as u32 length and bytes: hostname, user, cwd; u32 count and arguments; u32 count and environment. */
export function encodeSpec(spec: AgentExecSpec): Uint8Array {
  const environment = Object.entries(spec.env).map(([name, value]) => `${name}=${value}`);
  const count = (list: readonly unknown[]) => packIntegers([32, list.length]);
  const text = (value: string): Uint8Array[] => {
    const bytes = Buffer.from(value, "utf8");
    return [packIntegers([32, bytes.byteLength]), bytes];
  };
  return Buffer.concat([
    ...text(spec.hostname),
    ...text(spec.userName ?? ""),
    ...text(spec.cwd),
    count(spec.argv),
    ...spec.argv.flatMap(text),
    count(environment),
    ...environment.flatMap(text),
  ]);
}
