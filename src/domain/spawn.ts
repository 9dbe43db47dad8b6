import { ApiError } from "./errors.ts";
import { given } from "./given.ts";
import type { FileId, ImageId } from "./ids.ts";
import { type ImageReference, parseImageReference } from "./image.ts";
import {
  ARGUMENT_BYTES_MAX,
  ARGUMENTS_BYTES_MAX,
  CWD_DEFAULT,
  ENV_COUNT_MAX,
  FILE_MODE_DEFAULT,
  FILES_COUNT_MAX,
  STDIN_BYTES_MAX,
  TIMEOUT_SECONDS_DEFAULT,
} from "./instance.ts";
import type { NetworkInput, NetworkRequest } from "./network.ts";
import { OUTPUT_BYTES_DEFAULT } from "./output.ts";
import { checkStdin } from "./stdin.ts";
import { displayName, type GuestPath, parseGuestPathText } from "./tree/guest-path.ts";

/** The operator's limits for an instance. */
export interface SpawnLimits {
  readonly instanceTimeoutSecondsMax: number;
  readonly vcpusDefault: number;
  readonly vcpusMax: number;
  readonly memoryBytesDefault: number;
  readonly memoryBytesMax: number;
  readonly diskBytesDefault: number;
  readonly diskBytesMax: number;
}

/** A command to run. Absent fields have defaults. */
export interface CommandInput {
  readonly command: string;
  readonly args?: readonly string[] | undefined;
  readonly shell?: boolean | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** names of the image's variables that the command must not have; `env` may set them again */
  readonly unset?: readonly string[] | undefined;
  readonly cwd?: string | undefined;
  /**
   * true: the variables and the working directory of the image apply. With a shell, `env` overrides the variables, and the
   * shell is the one that SHELL names; without one, only PATH comes from the image. "variables": without a shell, too, all of
   * the image's variables apply.
   */
  readonly inherit?: boolean | "variables" | undefined;
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
  /** in place of `uid` and `gid`: a name of the guest's passwd, or a number, optionally with `:` and a group */
  readonly user?: string | undefined;
  readonly timeoutSeconds?: number | undefined;
  readonly truncateOutputAtBytes?: number | undefined;
  /** ASCII, or `base64:` followed by standard base64 */
  readonly stdin?: string | undefined;
  /** true: standard input stays open after `stdin`, and more may be sent */
  readonly stdinOpen?: boolean | undefined;
  /** size of a terminal for all three streams */
  readonly terminal?: TerminalSize | undefined;
  /** true: what a process leaves behind stays until its machine ends. The command of an instance ends with all that it started. */
  readonly lingers?: boolean | undefined;
}

/** A request for an instance. Absent fields have defaults. */
export interface SpawnInput extends CommandInput {
  /** `<uuid>` or `tag:<name>` */
  readonly image: string;
  /** input files by path in the sandbox */
  readonly files?: Readonly<Record<string, FileInput>> | undefined;
  /** start of the time limit; default: the start of the command */
  readonly timeoutFrom?: "start" | "request" | undefined;
  readonly hostname?: string | undefined;
  readonly disposable?: boolean | undefined;
  /** the tag to move to the image of the result */
  readonly tag?: string | undefined;
  /** true: the new image has the variables of its parent, overridden by `env` and without those of `unset` */
  readonly preserveEnv?: boolean | undefined;
  /** true: the working directory of the command is that of the new image */
  readonly preserveCwd?: boolean | undefined;
  /** `ceiling`: the largest network that the operator and the token allow, which may be none */
  readonly network?: NetworkInput | "ceiling" | undefined;
  readonly resources?:
    | {
        readonly vcpus?: number | undefined;
        readonly memoryBytes?: number | undefined;
        readonly diskBytes?: number | undefined;
      }
    | undefined;
}

export interface FileInput {
  readonly fileId: string;
  /** four octal digits */
  readonly mode?: string | undefined;
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
}

/** A terminal's size in characters. */
export interface TerminalSize {
  readonly rows: number;
  readonly columns: number;
}

/** A validated command with all defaults filled in. */
export interface CheckedCommand {
  /** arguments of execve; `argv[0]` without a slash is looked up in PATH */
  readonly argv: readonly string[];
  readonly shell: boolean;
  /** the variables of the request only; the run adds PATH, HOME and HOSTNAME when they are missing */
  readonly env: Readonly<Record<string, string>>;
  readonly unset: readonly string[];
  readonly inherit: boolean | "variables";
  /** absolute, normalised path, as text */
  readonly cwd: string;
  /** false: `cwd` is a default */
  readonly isCwdGiven: boolean;
  readonly uid: number;
  readonly gid: number;
  /** the user that the guest resolves; absent: `uid` and `gid` are the user */
  readonly user?: string;
  /** limit of each stream, in `bytes`; null: none but that of the log */
  readonly truncateOutputAtBytes: number | null;
  /** ASCII, or `base64:` followed by standard base64 (see `decodeStdin`); null is empty */
  readonly stdin: string | null;
  /** true: more may be sent after `stdin`; when false and `stdin` is null, standard input is /dev/null */
  readonly stdinOpen: boolean;
  /** null: the streams are pipes */
  readonly terminal: TerminalSize | null;
  /** true: what the process leaves behind stays */
  readonly lingers?: boolean;
}

/** One input file of an instance. */
export interface CheckedFile {
  /** absolute, normalised path in the sandbox, as text */
  readonly path: string;
  readonly fileId: FileId;
  /** permission bits, 0 to 0o7777 */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
}

/** A validated spawn request with all defaults filled in. The image and the files are not resolved yet. */
export interface CheckedSpawn extends CheckedCommand {
  readonly truncateOutputAtBytes: number;
  readonly image: ImageReference;
  readonly timeoutSeconds: number;
  readonly files: readonly CheckedFile[];
  readonly hostname: string | null;
  readonly disposable: boolean;
  /** the tag to move to the image of the result; null: none */
  readonly tag: string | null;
  readonly preserveEnv: boolean;
  readonly preserveCwd: boolean;
  readonly resources: { readonly vcpus: number; readonly memoryBytes: number; readonly diskBytes: number };
}

/** One input file of an instance, resolved to its content. */
export interface SubmittedFile extends CheckedFile {
  readonly sha256: string;
  readonly sizeBytes: number;
}

/** A validated instance, with its image and files resolved, as the use cases submit it. */
export interface InstanceSubmission extends Omit<CheckedSpawn, "image" | "files"> {
  readonly imageId: ImageId;
  readonly files: readonly SubmittedFile[];
  /** null: none */
  readonly network: NetworkRequest | null;
  /** time from which the time limit counts, in `milliseconds` since the epoch; null: it counts from the command's start */
  readonly requestedAt: number | null;
}

/** An instance that the scheduler has admitted. */
export interface InstanceRequest extends Omit<InstanceSubmission, "stdin"> {
  /** opens the beginning of standard input, and reads it in chunks; null when the request has none */
  readonly stdin: (() => AsyncIterable<Uint8Array>) | null;
}

/** The part of an instance's request that is stored as long as its operation: it has no secrets. */
export interface InstanceBody extends Omit<InstanceSubmission, "env" | "stdin" | "resources"> {
  readonly envNames: readonly string[];
  /** size of standard input, in `bytes` */
  readonly stdinBytes: number;
  /** true: the beginning of the request; the whole one is among its secrets until the operation ends */
  readonly isCut: boolean;
}

/** The request of an instance, as clients can read it. It has neither the values of `env` nor standard input. */
export interface KeptInstance extends Omit<InstanceBody, "argv" | "files" | "requestedAt"> {
  readonly kind: "instance";
  /** with a shell its expression, otherwise the program */
  readonly command: string;
  readonly args: readonly string[];
  readonly files: readonly CheckedFile[];
  readonly resources: CheckedSpawn["resources"] | null;
}

/**
 * Checks the rules that a schema cannot express, and fills in defaults.
 * @throws ApiError `validation_error` or `invalid_path`
 */
export function checkSpawn(request: SpawnInput, limits: SpawnLimits): CheckedSpawn {
  const command = checkCommand(request);
  return {
    ...command,
    image: parseImageReference(request.image),
    timeoutSeconds: checkTimeout(request.timeoutSeconds, limits.instanceTimeoutSecondsMax),
    files: checkFiles(request.files ?? {}),
    hostname: request.hostname ?? null,
    disposable: request.disposable ?? false,
    tag: checkTag(request),
    preserveEnv: request.preserveEnv ?? false,
    preserveCwd: request.preserveCwd ?? false,
    resources: checkResources(request.resources ?? {}, limits),
  };
}

function checkTag({ tag, disposable = false }: SpawnInput): string | null {
  if (tag !== undefined && disposable) fieldError("tag", "needs an image, and a disposable run makes none");
  return tag ?? null;
}

/** The time limit in `seconds`, or its default. @throws ApiError `validation_error` when the operator's limit is lower */
export function checkTimeout(seconds: number | undefined, secondsMax: number): number {
  return bounded("timeout", seconds, TIMEOUT_SECONDS_DEFAULT, secondsMax);
}

/**
 * Largest initial standard input of an additional process, in `bytes`. The guest accepts that much at once, so none of
 * it stays in the memory of the service. More can be written while the process runs.
 */
export const PROCESS_STDIN_BYTES_MAX = 65_536;

/**
 * Checks an additional process of an instance.
 * @param outputBytes limit of each output stream when the request has none, in `bytes`; null: no limit, for a log that is a ring
 * @throws as `checkSpawn` does
 */
export function checkProcess(request: CommandInput, outputBytes: number | null = OUTPUT_BYTES_DEFAULT): CheckedCommand {
  const checked = checkCommand(request, PROCESS_STDIN_BYTES_MAX);
  return { ...checked, truncateOutputAtBytes: request.truncateOutputAtBytes ?? outputBytes };
}

function checkCommand(
  request: CommandInput,
  stdinBytesMax = STDIN_BYTES_MAX,
): CheckedCommand & Pick<CheckedSpawn, "truncateOutputAtBytes"> {
  const argv = argvOf(request);
  const { env = {}, unset = [], shell = false, inherit = false } = request;
  if (Object.keys(env).length + unset.length > ENV_COUNT_MAX) {
    fieldError("env", `must have at most ${ENV_COUNT_MAX} variables`);
  }
  checkArguments(argv, env, shell);
  const unsetBytes = unset.reduce((sum, name) => sum + checkText("env", name), 0);
  if (unsetBytes > ARGUMENTS_BYTES_MAX) fieldError("env", `must be at most ${ARGUMENTS_BYTES_MAX} bytes together`);
  if (request.stdin !== undefined) checkStdin(request.stdin, stdinBytesMax);
  return {
    argv,
    shell,
    env,
    unset,
    inherit,
    cwd: checkPath(request.cwd ?? (inherit ? "/" : CWD_DEFAULT), "cwd"),
    isCwdGiven: request.cwd !== undefined,
    uid: request.uid ?? 0,
    gid: request.gid ?? 0,
    ...checkUser(request),
    truncateOutputAtBytes: request.truncateOutputAtBytes ?? OUTPUT_BYTES_DEFAULT,
    stdin: request.stdin ?? null,
    stdinOpen: request.stdinOpen ?? false,
    terminal: request.terminal ?? null,
    ...given({ lingers: request.lingers }),
  };
}

function checkUser({ user, uid, gid }: CommandInput): Pick<CheckedCommand, "user"> {
  if (user === undefined) return {};
  if (uid !== undefined || gid !== undefined) fieldError("user", "replaces uid and gid: they cannot be given together");
  checkText("user", user);
  return { user };
}

/** The arguments of execve. A shell gets `args` as $1, $2 and so on; without a shell, the executable gets them. */
export function argvOf(request: Pick<CommandInput, "command" | "args" | "shell">): string[] {
  const args = request.args ?? [];
  if (request.shell !== true) return [request.command, ...args];
  return args.length === 0
    ? ["/bin/sh", "-c", request.command]
    : ["/bin/sh", "-c", request.command, "/bin/sh", ...args];
}

/** @throws ApiError `validation_error` when execve would refuse the arguments and variables */
export function checkArguments(argv: readonly string[], env: Readonly<Record<string, string>>, shell: boolean): void {
  let totalBytes = 0;
  const add = (field: string, text: string): void => {
    const bytes = checkText(field, text);
    totalBytes += bytes + 1 + POINTER_BYTES;
    if (bytes > ARGUMENT_BYTES_MAX) fieldError(field, `must be at most ${ARGUMENT_BYTES_MAX} bytes`);
  };
  const commandIndex = shell ? 2 : 0;
  argv.forEach((argument, index) => {
    add(index <= commandIndex ? "command" : "args", argument);
  });
  for (const [name, value] of Object.entries(env)) {
    if (name === "" || name.includes("=")) fieldError("env", 'must have names that are not empty and have no "="');
    add("env", `${name}=${value}`);
  }
  if (totalBytes > ARGUMENTS_BYTES_MAX) {
    fieldError("command", `, args and env must be at most ${ARGUMENTS_BYTES_MAX} bytes together`);
  }
}

/** Pointers in the guest's argv and envp count against the same limit as the strings. */
const POINTER_BYTES = 8;

/** Checks that execve accepts a text, and returns its length in bytes of UTF-8. */
function checkText(field: string, text: string): number {
  if (text.includes("\0")) fieldError(field, "must not contain NUL");
  if (!text.isWellFormed()) fieldError(field, "must be valid Unicode");
  return Buffer.byteLength(text);
}

/** The normalised path, as text. @throws ApiError `invalid_path` */
export function checkPath(text: string, field: string): string {
  if (!text.isWellFormed()) throw new ApiError("invalid_path", `${field}: path must be valid Unicode`, { field });
  return displayName(parsePath(text, field));
}

function parsePath(text: string, field: string): GuestPath {
  try {
    return parseGuestPathText(text);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    throw new ApiError(error.code, `${field}: ${error.message}`, { ...error.details, field });
  }
}

/** @throws ApiError `validation_error`, `invalid_path` */
export function checkFiles(files: Readonly<Record<string, FileInput>>): CheckedFile[] {
  const entries = Object.entries(files);
  if (entries.length > FILES_COUNT_MAX) fieldError("files", `must have at most ${FILES_COUNT_MAX} entries`);
  const seen = new Set<string>();
  return entries.map(([text, file]) => {
    const path = checkPath(text, "files");
    if (path === "/") throw new ApiError("invalid_path", "files: path must not be /", { field: "files", path });
    if (seen.has(path)) fieldError("files", `must name each path once: ${path.slice(0, 200)}`);
    seen.add(path);
    return {
      path,
      fileId: file.fileId.toLowerCase() as FileId,
      mode: Number.parseInt(file.mode ?? FILE_MODE_DEFAULT, 8),
      uid: file.uid ?? 0,
      gid: file.gid ?? 0,
    };
  });
}

/** @throws ApiError `validation_error` for more than the operator allows */
export function checkResources(
  resources: NonNullable<SpawnInput["resources"]>,
  limits: SpawnLimits,
): CheckedSpawn["resources"] {
  return {
    vcpus: bounded("resources.vcpus", resources.vcpus, limits.vcpusDefault, limits.vcpusMax),
    memoryBytes: bounded(
      "resources.memory_bytes",
      resources.memoryBytes,
      limits.memoryBytesDefault,
      limits.memoryBytesMax,
    ),
    diskBytes: bounded("resources.disk_bytes", resources.diskBytes, limits.diskBytesDefault, limits.diskBytesMax),
  };
}

/** Checks a value against `maximum`. A default above the operator's maximum is lowered to it. */
function bounded(field: string, value: number | undefined, fallback: number, maximum: number): number {
  if (value === undefined) return Math.min(fallback, maximum);
  if (value > maximum) fieldError(field, `must be an integer from 1 to ${maximum}`, { minimum: 1, maximum });
  return value;
}

function fieldError(field: string, rule: string, extra: Record<string, unknown> = {}): never {
  throw new ApiError("validation_error", `${field}${rule.startsWith(",") ? "" : " "}${rule}`, { field, ...extra });
}
