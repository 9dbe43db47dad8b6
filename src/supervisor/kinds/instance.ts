import type { ImageOrigin } from "../../db/images/history.ts";
import { KEPT_CHARACTERS_MAX, type StoredRequest } from "../../db/requests.ts";
import { ApiError } from "../../domain/errors.ts";
import type { InstanceBody, InstanceRequest, InstanceSubmission, KeptInstance } from "../../domain/spawn.ts";
import { decodedStdin, decodeStdin } from "../../domain/stdin.ts";
import { beginning, cutText } from "../../domain/text/beginning.ts";
import { type InstanceContext, instanceWorker } from "../instance/run-instance.ts";
import type { Kind } from "../operations/kind.ts";
import { jsonBytes, requestGone } from "../operations/requests.ts";

/** A standard input of at most this many `bytes` is stored in the request's row; a larger one is stored as a file. */
const STDIN_IN_ROW_BYTES_MAX = 65_536;

/** The part of an instance's request that is deleted when the instance ends. */
interface InstanceSecrets {
  readonly env: Readonly<Record<string, string>>;
  /** as the request spelled it; null when there is none, or when a file holds it */
  readonly stdin: string | null;
  /** size of the file that holds standard input, in `bytes`; null when there is no such file */
  readonly stdinFileBytes: number | null;
  /** the whole body, when only its beginning is kept */
  readonly body?: InstanceBody;
}

export const instanceKind: Kind<InstanceSubmission, InstanceRequest, KeptInstance, InstanceContext> = {
  name: "instance",
  store({ env, stdin, resources, ...submission }) {
    const isFile = stdin !== null && stdin.length > STDIN_IN_ROW_BYTES_MAX;
    const bytes = stdin === null ? null : decodeStdin(stdin);
    const size = bytes?.byteLength ?? 0;
    const whole: InstanceBody = { ...submission, envNames: Object.keys(env), stdinBytes: size, isCut: false };
    const body = bodyToKeep(whole);
    const fileBytes = isFile ? size : null;
    const secrets: InstanceSecrets = {
      env,
      stdin: isFile ? null : stdin,
      stdinFileBytes: fileBytes,
      ...(body === whole ? {} : { body: whole }),
    };
    const fileIds = whole.files.map(({ fileId }) => fileId);
    const sizeBytes = jsonBytes(body) + jsonBytes(secrets) + (fileBytes ?? 0);
    const row = { body, secrets, resources, sizeBytes, fileIds };
    return { row, stdin: isFile ? bytes : null, credentials: null, imageId: submission.imageId };
  },
  async read({ stdin: file, ...stored }) {
    const { secrets, resources } = stored;
    if (secrets === null || resources === null) throw requestGone();
    const { env, stdin, stdinFileBytes } = secrets as InstanceSecrets;
    if (stdinFileBytes !== null && (await file.size()) !== stdinFileBytes) {
      throw new ApiError("unavailable", "the standard input of the operation is gone: backups do not contain it");
    }
    const open = stdinFileBytes !== null ? () => file.read() : stdin === null ? null : () => decodedStdin(stdin);
    const { envNames: _names, stdinBytes: _bytes, isCut: _cut, ...command } = wholeBody(stored);
    return { ...command, env, resources, stdin: open };
  },
  kept: ({ body, resources }) => keptInstance(body as InstanceBody, resources),
  worker: instanceWorker,
};

/** The fields in which a copy of a running instance differs from it. */
export interface InstanceCopy extends Pick<InstanceSubmission, "network" | "stdinOpen"> {
  /** null: as the instance */
  readonly timeoutSeconds: number | null;
  /** absent: as the instance */
  readonly disposable?: boolean | undefined;
}

/** The request of a copy of a running instance. The copy has its files and the input that had arrived; the tag is not its own. */
export function copyOfInstance(
  parent: StoredRequest,
  { timeoutSeconds, disposable, ...changes }: InstanceCopy,
): Omit<InstanceSubmission, "imageId"> {
  const { secrets, resources } = parent;
  if (secrets === null || resources === null) throw requestGone();
  const { env } = secrets as InstanceSecrets;
  const { envNames: _names, stdinBytes: _bytes, isCut: _cut, imageId: _image, ...command } = wholeBody(parent);
  return {
    ...command,
    ...changes,
    ...{ env, resources, stdin: null, files: [], tag: null, requestedAt: null },
    timeoutSeconds: timeoutSeconds ?? command.timeoutSeconds,
    disposable: disposable ?? command.disposable,
  };
}

/** How images of an instance that has not ended are made. */
export function instanceOrigin(stored: StoredRequest): ImageOrigin {
  const { argv, network } = wholeBody(stored);
  return { command: argv, network: network !== null };
}

/** The body as it was submitted. */
function wholeBody({ body, secrets }: Pick<StoredRequest, "body" | "secrets">): InstanceBody {
  return (secrets as InstanceSecrets | null)?.body ?? (body as InstanceBody);
}

/** The request of an instance as clients can read it, from its stored body. */
export function keptInstance(body: InstanceBody, resources: KeptInstance["resources"]): KeptInstance {
  const { argv, files, requestedAt: _at, ...fields } = body;
  // A shell's arguments are its own name, an option, the expression, its name again, and those of the request.
  const [command = "", ...args] = body.shell ? [argv[2] ?? "", ...argv.slice(4)] : argv;
  const placed = files.map(({ sha256: _hash, sizeBytes: _size, ...file }) => file);
  return { ...fields, kind: "instance", command, args, files: placed, resources };
}

/**
 * Largest parts of a body that is too long to be kept whole, as `characters` of JSON. The other fields together take
 * less than the rest of KEPT_CHARACTERS_MAX.
 */
const PART_CHARACTERS_MAX = { argv: 24_576, files: 16_384, names: 6144, network: 4096, path: 4096 } as const;
/** Places in argv of the name of a shell. */
const SHELL_NAMES_AT: ReadonlySet<number> = new Set([0, 3]);
const SHELL_CHARACTERS_MAX = 1024;

/** The body to store: the whole, or its beginning when it is too long to be kept. */
export function bodyToKeep(body: InstanceBody): InstanceBody {
  if (JSON.stringify(body).length <= KEPT_CHARACTERS_MAX) return body;
  const { argv, shell, files, unset, envNames, network, cwd, hostname } = body;
  // The name of a shell precedes the expression, so a long name would use all room.
  const words = argv.map((text, at) => (shell && SHELL_NAMES_AT.has(at) ? cutText(text, SHELL_CHARACTERS_MAX) : text));
  return {
    ...body,
    argv: beginning(words, PART_CHARACTERS_MAX.argv),
    files: beginning(files, PART_CHARACTERS_MAX.files),
    unset: beginning(unset, PART_CHARACTERS_MAX.names),
    envNames: beginning(envNames, PART_CHARACTERS_MAX.names),
    network: network === null ? null : { ...network, allow: beginning(network.allow, PART_CHARACTERS_MAX.network) },
    cwd: cutText(cwd, PART_CHARACTERS_MAX.path),
    hostname: hostname === null ? null : cutText(hostname, PART_CHARACTERS_MAX.path),
    isCut: true,
  };
}
