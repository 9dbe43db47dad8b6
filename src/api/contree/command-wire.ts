import { ARGUMENT_BYTES_MAX } from "../../domain/instance.ts";
import type { CommandInput, SpawnInput } from "../../domain/spawn.ts";
import { shellWord } from "../../domain/text/shell-word.ts";
import type { InstanceUseCases } from "../../service/instances.ts";
import type { ExecSpec, InstanceSpawn } from "./schema/instances.ts";
import { inputText } from "./streams.ts";

/** The host name of an instance whose request gives none. */
export const HOSTNAME_DEFAULT = "linuxkit";
/** Command of an instance whose request has only standard input. */
const SHELL = "/bin/sh";

const MODE_BITS = 0o7777;

/**
 * The use case's request for an instance. Values above `bounds` are lowered to them.
 * @throws ApiError `validation_error`
 */
export function spawnOf(
  body: InstanceSpawn,
  { instanceTimeoutSecondsMax: timeoutSecondsMax, diskBytesMax }: InstanceUseCases["bounds"],
): SpawnInput {
  const { image, timeout, files, hostname, disposable, tag, preserve_env, preserve_cwd } = body;
  const diskBytes = body.resources_limits?.max_layer_bytes ?? null;
  return {
    ...commandOf(body, preserve_env ?? false),
    image,
    timeoutSeconds: Math.min(timeout ?? timeoutSecondsMax, timeoutSecondsMax),
    timeoutFrom: "request",
    hostname: hostname || HOSTNAME_DEFAULT,
    disposable: disposable ?? false,
    tag: tag ?? undefined,
    preserveEnv: preserve_env ?? false,
    preserveCwd: preserve_cwd ?? false,
    files: filesOf(files ?? {}),
    resources: diskBytes === null ? undefined : { diskBytes: Math.min(diskBytes, diskBytesMax) },
    network: body.networking?.enabled === false ? undefined : "ceiling",
  };
}

/**
 * The use case's request for a command.
 * @param keepsVariables whether the image of the result has the variables
 * @throws ApiError `validation_error`
 */
export function commandOf(body: ExecSpec, keepsVariables = false): CommandInput {
  const { cwd, uid, gid, stdin, truncate_output_at } = body;
  const command = body.command || SHELL;
  const args = body.args ?? [];
  const shell = body.shell ?? false;
  return {
    command: shell ? expressionOf(command, args) : command,
    args: shell ? [] : args,
    shell,
    inherit: true,
    ...variablesOf(body.env ?? {}, keepsVariables),
    cwd: cwd || undefined,
    uid: uid ?? 0,
    gid: gid ?? 0,
    stdin: (stdin && inputText(stdin)) || undefined,
    stdinOpen: stdin?.close === false,
    truncateOutputAtBytes: truncate_output_at ?? undefined,
  };
}

/** @param isKept whether the image of the result has the variables: then an empty value removes one, as null always does */
function variablesOf(env: NonNullable<ExecSpec["env"]>, isKept: boolean): Pick<CommandInput, "env" | "unset"> {
  const set: [string, string][] = [];
  const unset: string[] = [];
  for (const [name, value] of Object.entries(env)) {
    if (value === null || (isKept && value === "")) unset.push(name);
    else set.push([name, value]);
  }
  return { env: Object.fromEntries(set), unset };
}

/**
 * The words of a shell expression: arguments are appended, because clients mean them as further words. An expression that is
 * too long to run may lack its end.
 */
function expressionOf(command: string, args: readonly string[]): string {
  let expression = command;
  for (const word of args) {
    if (expression.length > ARGUMENT_BYTES_MAX) break;
    expression += ` ${shellWord(word)}`;
  }
  return expression;
}

function filesOf(files: NonNullable<InstanceSpawn["files"]>): NonNullable<SpawnInput["files"]> {
  return Object.fromEntries(
    Object.entries(files).map(([path, { uuid, mode, uid, gid }]) => [
      path,
      { fileId: uuid, mode: modeText(mode ?? null), uid: uid ?? 0, gid: gid ?? 0 },
    ]),
  );
}

/** Permissions in four octal digits; undefined when absent. A text is octal, and may have the bits of a type. */
function modeText(mode: string | number | null): string | undefined {
  if (mode === null) return undefined;
  const bits = typeof mode === "number" ? mode : Number.parseInt(mode.replace(/^0o/, ""), 8);
  return (bits & MODE_BITS).toString(8).padStart(4, "0");
}
