import { ApiError } from "./errors.ts";
import { ARGUMENT_BYTES_MAX } from "./instance.ts";
import { type CheckedCommand, type CheckedSpawn, checkArguments } from "./spawn.ts";

/** Values of environment variables by their names. */
export type Variables = Readonly<Record<string, string>>;

/** Defaults of an image for the commands that run on it, if they request them (`inherit`). */
export interface ImageDefaults {
  readonly variables: Variables;
  /** absolute, normalised working directory; null when the image has none */
  readonly cwd: string | null;
}

export const NO_DEFAULTS: ImageDefaults = { variables: {}, cwd: null };

/** Bounds of the variables of an image; `bytes` counts names and values of all together. */
export const VARIABLES_COUNT_MAX = 1000;
export const VARIABLES_BYTES_MAX = 131_072;

/**
 * Label with the working directory of an image in an archive of this service. WorkingDir of an imported image plays no part,
 * so it cannot hold it.
 */
export const CWD_LABEL = "coppice.cwd";

const SHELL_DEFAULT = "/bin/sh";

/** True when images made with these defaults behave the same. */
export function haveSameDefaults(one: ImageDefaults, other: ImageDefaults): boolean {
  const [names, otherNames] = [Object.keys(one.variables), Object.keys(other.variables)];
  if (one.cwd !== other.cwd || names.length !== otherNames.length) return false;
  return names.every((name) => Object.hasOwn(other.variables, name) && one.variables[name] === other.variables[name]);
}

/** The variables of an image that a command gets: all with a shell, and only PATH without one, unless it requests all. Those of its request replace them. */
export function inheritedVariables(
  { inherit, shell, unset }: Pick<CheckedCommand, "inherit" | "shell" | "unset">,
  { variables }: ImageDefaults,
): Variables {
  if (inherit === false) return {};
  const hasAll = shell || inherit === "variables";
  const gone = new Set(unset);
  return Object.fromEntries(
    Object.entries(variables).filter(([name, value]) => {
      // Programs are found through PATH: an empty one would hide them all.
      if (name === "PATH" && value === "") return false;
      return !gone.has(name) && (hasAll || name === "PATH");
    }),
  );
}

/**
 * The command as it runs on an image: with the shell that SHELL names, and in the image's directory when the request names
 * none. A command that does not inherit stays as it is.
 * @throws ApiError `validation_error` when execve would refuse it with the image's variables
 */
export function onImage<Command extends CheckedCommand>(command: Command, defaults: ImageDefaults): Command {
  if (!command.inherit) return command;
  const env = { ...inheritedVariables(command, defaults), ...command.env };
  const cwd = command.isCwdGiven ? command.cwd : (defaults.cwd ?? command.cwd);
  const argv = command.shell
    ? withShell(command.argv, (Object.hasOwn(env, "SHELL") && env["SHELL"]) || SHELL_DEFAULT)
    : command.argv;
  checkArguments(argv, env, command.shell);
  return { ...command, argv, cwd };
}

/** The shell is the program, and the name that `$0` gives when there are arguments. */
function withShell(
  [_program, option = "", expression = "", name, ...args]: readonly string[],
  shell: string,
): string[] {
  return [shell, option, expression, ...(name === undefined ? [] : [shell, ...args])];
}

/** The defaults of the image that a run makes. */
export function resultDefaults(
  run: Pick<CheckedSpawn, "env" | "unset" | "cwd" | "preserveEnv" | "preserveCwd">,
  { variables, cwd }: ImageDefaults,
): ImageDefaults {
  const gone = new Set(run.unset);
  const kept = Object.entries({ ...variables, ...run.env }).filter(
    ([name]) => !gone.has(name) || Object.hasOwn(run.env, name),
  );
  return {
    variables: run.preserveEnv ? Object.fromEntries(kept) : variables,
    cwd: run.preserveCwd ? run.cwd : cwd,
  };
}

/** @throws ApiError `validation_error` when the variables are more or longer than an image may have */
export function checkVariables(variables: Variables): void {
  if (fittingVariables(Object.entries(variables)).length === Object.keys(variables).length) return;
  const limits = `${VARIABLES_COUNT_MAX} variables of ${VARIABLES_BYTES_MAX} bytes together`;
  throw new ApiError("validation_error", `env: an image keeps at most ${limits}`, { field: "env" });
}

/** The first variables that an image may have. */
export function fittingVariables(variables: readonly (readonly [string, string])[]): (readonly [string, string])[] {
  let bytes = 0;
  return variables.slice(0, VARIABLES_COUNT_MAX).filter(([name, value]) => {
    const size = Buffer.byteLength(name) + Buffer.byteLength(value);
    // A variable is one argument of execve, with "=" in it.
    if (size + 1 > ARGUMENT_BYTES_MAX || bytes + size > VARIABLES_BYTES_MAX) return false;
    bytes += size;
    return true;
  });
}
