import { KEPT_CHARACTERS_MAX } from "../../db/requests.ts";
import type { RequestedResources } from "../../db/schema.ts";
import type { FileId, ImageId, OperationId } from "../../domain/ids.ts";
import type { NetworkRequest, NetworkRule } from "../../domain/network.ts";
import type { CheckedFile, TerminalSize } from "../../domain/spawn.ts";
import type { ImportSource, ImportSubmission, InstanceSubmission, SubmittedFile } from "./ports.ts";

/* What stays of a request when its operation has ended. */

/** What an instance was asked to do. The values of `env` and standard input are not kept. */
export interface KeptInstance {
  readonly kind: "instance";
  readonly imageId: ImageId;
  /** with a shell its expression, otherwise the program */
  readonly command: string;
  readonly args: readonly string[];
  readonly shell: boolean;
  /** null for an instance of an older version */
  readonly envNames: readonly string[] | null;
  readonly unset: readonly string[];
  readonly inherit: boolean;
  readonly preserveEnv: boolean;
  readonly preserveCwd: boolean;
  /** where the command ran */
  readonly cwd: string;
  /** false: `cwd` is a default */
  readonly isCwdGiven: boolean;
  readonly uid: number;
  readonly gid: number;
  readonly hostname: string | null;
  readonly timeoutSeconds: number;
  readonly truncateOutputAtBytes: number;
  readonly disposable: boolean;
  /** null when it is not known */
  readonly stdinBytes: number | null;
  readonly stdinOpen: boolean;
  readonly terminal: TerminalSize | null;
  readonly files: readonly (Pick<CheckedFile, "path" | "mode" | "uid" | "gid"> & { readonly fileId: FileId })[];
  readonly resources: RequestedResources | null;
  /** null: none */
  readonly network: NetworkRequest | null;
  /** true: texts and lists have only their beginnings, because the request is long */
  readonly isCut: boolean;
}

/** What an import was asked to do. */
export interface KeptImport {
  readonly kind: "image_import";
  readonly source: ImportSource;
  readonly tag: string | null;
  readonly timeoutSeconds: number;
  readonly hadCredentials: boolean;
}

/** What a checkpoint was asked to do. */
export interface KeptCheckpoint {
  readonly kind: "checkpoint";
  readonly instanceId: OperationId;
  readonly tag: string | null;
  readonly timeoutSeconds: number;
}

export type KeptRequest = KeptInstance | KeptImport | KeptCheckpoint;

/** The part of an import's request that is stored as long as the operation. */
export type ImportBody = Omit<ImportSubmission, "credentials">;

/** The part of an instance's request that is stored as long as the operation. */
export type InstanceBody = Omit<InstanceSubmission, "env" | "stdin" | "resources"> & {
  /** absent in a request of an older version, like all fields that have defaults when they are read */
  readonly envNames?: readonly string[];
  readonly stdinBytes?: number;
  /** true: the beginning of the request; the whole one is among its secrets until the operation ends */
  readonly isCut?: boolean;
};

/**
 * Largest parts of a body that is too long to be kept whole, as `characters` of JSON. What has no part of its own takes
 * less than the rest of KEPT_CHARACTERS_MAX.
 */
const PART_CHARACTERS_MAX = { argv: 24_576, files: 16_384, names: 6144, network: 4096, path: 4096 } as const;
/** Characters of JSON for one character of text, at most: a control character is written as an escape. */
const ESCAPE_CHARACTERS = 6;

/** Places in argv of the name of a shell. */
const SHELL_NAMES_AT: ReadonlySet<number> = new Set([0, 3]);
const SHELL_CHARACTERS_MAX = 1024;

/** The body as it is stored: as it is, or its beginning when it is too long to be kept. */
export function bodyToKeep(body: InstanceBody): InstanceBody {
  if (JSON.stringify(body).length <= KEPT_CHARACTERS_MAX) return body;
  const { argv, shell, files, unset, envNames, network, cwd, hostname } = body;
  // A shell is named before the expression, so a long name of it would take all room.
  const shown = argv.map((text, at) => (shell && SHELL_NAMES_AT.has(at) ? cutText(text, SHELL_CHARACTERS_MAX) : text));
  return {
    ...body,
    argv: cutTexts(shown, PART_CHARACTERS_MAX.argv),
    files: cutList(files, PART_CHARACTERS_MAX.files),
    unset: cutTexts(unset, PART_CHARACTERS_MAX.names),
    ...(envNames === undefined ? {} : { envNames: cutTexts(envNames, PART_CHARACTERS_MAX.names) }),
    network: network === null ? null : { ...network, allow: cutList(network.allow, PART_CHARACTERS_MAX.network) },
    cwd: cutText(cwd, PART_CHARACTERS_MAX.path),
    hostname: hostname === null ? null : cutText(hostname, PART_CHARACTERS_MAX.path),
    isCut: true,
  };
}

/** The first texts that fit; the last one of them may be cut. */
function cutTexts(texts: readonly string[], charactersMax: number): string[] {
  const whole = cutList(texts, charactersMax);
  const next = texts[whole.length];
  const left = charactersMax - jsonCharacters(whole);
  return next === undefined || left <= ESCAPE_CHARACTERS ? whole : [...whole, cutText(next, left)];
}

function cutText(text: string, charactersMax: number): string {
  if (JSON.stringify(text).length <= charactersMax) return text;
  return text.slice(0, Math.floor(charactersMax / ESCAPE_CHARACTERS)).toWellFormed();
}

/** The first items that fit. */
function cutList<Item extends string | SubmittedFile | NetworkRule>(
  items: readonly Item[],
  charactersMax: number,
): Item[] {
  let left = charactersMax;
  const end = items.findIndex((item) => {
    left -= JSON.stringify(item).length + 1;
    return left < 0;
  });
  return end === -1 ? [...items] : items.slice(0, end);
}

function jsonCharacters(texts: readonly string[]): number {
  return texts.reduce((sum, text) => sum + JSON.stringify(text).length + 1, 0);
}

/** What an instance was asked to do, from its stored body with all defaults filled in. */
export function keptInstance(body: InstanceBody, resources: RequestedResources | null): KeptInstance {
  const { argv, shell, files, envNames = null, stdinBytes = null, isCut = false, requestedAt: _at, ...fields } = body;
  // A shell's arguments are its own name, an option, the expression, its name again, and those of the request.
  const [command = "", ...args] = shell ? [argv[2] ?? "", ...argv.slice(4)] : argv;
  const placed = files.map(({ path, fileId, mode, uid, gid }) => ({ path, fileId, mode, uid, gid }));
  return { ...fields, kind: "instance", command, args, shell, files: placed, envNames, stdinBytes, resources, isCut };
}
