import type { Database } from "../../db/database.ts";
import type { ImageOrigin } from "../../db/history.ts";
import type { OperationRow } from "../../db/operations.ts";
import { liveOperationsOf, type NewRequest, operationRequest, type StoredRequest } from "../../db/requests.ts";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import { decodedStdin, decodeStdin } from "../../domain/spawn.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { readStdin, removeStdin, stdinBytes, sweepStdin, writeStdin } from "../../storage/requests.ts";
import { type Keepable, removedUnlessKept } from "../../system/scratch.ts";
import { bodyToKeep, type ImportBody, type InstanceBody, type KeptRequest, keptInstance } from "./kept-request.ts";
import type {
  CheckpointSubmission,
  Credentials,
  ImportSubmission,
  InstanceRequest,
  InstanceSubmission,
} from "./ports.ts";

/** A standard input of at most this many `bytes` is stored in the request's row; a larger one is stored as a file. */
const STDIN_IN_ROW_BYTES_MAX = 65_536;

/** The part of an instance's request that is deleted when the instance ends. */
interface InstanceSecrets {
  readonly env: Readonly<Record<string, string>>;
  /** as the request spelled it; null when there is none, or when a file holds it */
  readonly stdin: string | null;
  /** size of the file that holds standard input, in `bytes`; null when there is no such file */
  readonly stdinFileBytes: number | null;
  /** the whole body, when the one that is kept is only its beginning */
  readonly body?: InstanceBody;
}

/* Fields that a request stored by an older version lacks. */
const OWNER_DEFAULT = { uid: 0, gid: 0 };
const INSTANCE_DEFAULT = {
  ...OWNER_DEFAULT,
  stdinOpen: false,
  terminal: null,
  network: null,
  requestedAt: null,
  shell: false,
  unset: [],
  inherit: false,
  isCwdGiven: true,
  preserveEnv: false,
  preserveCwd: false,
};
const IMPORT_DEFAULT = { reuse: false, keepTags: false };

/** A request in the form in which it is stored while it waits. */
export interface WaitingRequest {
  readonly row: NewRequest & { readonly sizeBytes: number };
  /** standard input that is stored as a file; null when there is none, or when the row holds it */
  readonly stdin: Uint8Array | null;
}

export function importToStore({ credentials, ...body }: ImportSubmission): WaitingRequest {
  const fileIds = body.source.kind === "archive" ? [body.source.fileId] : [];
  const sizeBytes = jsonBytes(body) + (credentials === null ? 0 : jsonBytes(credentials));
  return { row: { body, sizeBytes, fileIds }, stdin: null };
}

export function instanceToStore({ env, stdin, resources, ...submission }: InstanceSubmission): WaitingRequest {
  const isFile = stdin !== null && stdin.length > STDIN_IN_ROW_BYTES_MAX;
  const bytes = stdin === null ? null : decodeStdin(stdin);
  const whole: InstanceBody = { ...submission, envNames: Object.keys(env), stdinBytes: bytes?.byteLength ?? 0 };
  const body = bodyToKeep(whole);
  const fileBytes = isFile ? (bytes?.byteLength ?? 0) : null;
  const secrets: InstanceSecrets = {
    env,
    stdin: isFile ? null : stdin,
    stdinFileBytes: fileBytes,
    ...(body === whole ? {} : { body: whole }),
  };
  const fileIds = whole.files.map(({ fileId }) => fileId);
  const sizeBytes = jsonBytes(body) + jsonBytes(secrets) + (fileBytes ?? 0);
  return { row: { body, secrets, resources, sizeBytes, fileIds }, stdin: isFile ? bytes : null };
}

export function checkpointToStore(body: CheckpointSubmission): WaitingRequest {
  return { row: { body, sizeBytes: jsonBytes(body) }, stdin: null };
}

function jsonBytes(value: object): number {
  return Buffer.byteLength(JSON.stringify(value));
}

/** Stores the requests of operations on disk, as rows and files for large standard inputs. It keeps nothing in memory. */
export class Requests {
  readonly #db: Database;
  readonly #layout: DataLayout;

  constructor(db: Database, layout: DataLayout) {
    this.#db = db;
    this.#layout = layout;
  }

  /** Writes the file of a large standard input. It is removed at disposal, unless it is kept. */
  async stage(id: OperationId, { stdin }: WaitingRequest): Promise<Keepable> {
    await using undo = new AsyncDisposableStack();
    const staged = undo.use(removedUnlessKept(() => removeStdin(this.#layout, id)));
    if (stdin !== null) await writeStdin(this.#layout, id, stdin);
    undo.move();
    return staged;
  }

  readImport(id: OperationId, credentials: Credentials | null): ImportSubmission {
    return { ...IMPORT_DEFAULT, ...(this.#stored(id).body as ImportBody), credentials };
  }

  readCheckpoint(id: OperationId): CheckpointSubmission {
    return this.#stored(id).body as CheckpointSubmission;
  }

  /** How images of an instance that has not ended are made. @throws ApiError `unavailable` when its request is gone */
  originOf(id: OperationId): ImageOrigin {
    const { argv, network } = wholeBody(this.#stored(id));
    return { command: argv, network: network !== null };
  }

  /** @throws ApiError `unavailable` when the request or its standard input is gone */
  async readInstance(id: OperationId): Promise<InstanceRequest> {
    const { body, secrets, resources } = this.#stored(id);
    if (secrets === null || resources === null) throw requestGone();
    const { env, stdin, stdinFileBytes } = secrets as InstanceSecrets;
    if (stdinFileBytes !== null && (await stdinBytes(this.#layout, id)) !== stdinFileBytes) {
      throw new ApiError("unavailable", "the standard input of the operation is gone: backups do not contain it");
    }
    const open =
      stdinFileBytes !== null ? () => readStdin(this.#layout, id) : stdin === null ? null : () => decodedStdin(stdin);
    const { envNames: _names, stdinBytes: _bytes, ...command } = wholeBody({ body, secrets });
    return { ...command, env, resources, stdin: open };
  }

  /** Removes the files of an ended operation's request. */
  async forget(id: OperationId): Promise<void> {
    await removeStdin(this.#layout, id);
  }

  /** Removes request files that a former process left of ended operations. No request may be staged meanwhile. */
  async sweep(): Promise<void> {
    await sweepStdin(this.#layout, (ids) => liveOperationsOf(this.#db, ids));
  }

  #stored(id: OperationId): StoredRequest {
    const stored = operationRequest(this.#db, id);
    if (stored === null) throw requestGone();
    return stored;
  }
}

/** The body as it was submitted, with defaults for what an older version did not store. */
function wholeBody({ body, secrets }: Pick<StoredRequest, "body" | "secrets">): InstanceBody {
  return withDefaults((secrets as InstanceSecrets | null)?.body ?? (body as InstanceBody));
}

function withDefaults({ files, ...body }: InstanceBody): InstanceBody {
  return { ...INSTANCE_DEFAULT, ...body, files: files.map((file) => ({ ...OWNER_DEFAULT, ...file })) };
}

/** What the operation was asked to do; null when that was not kept. */
export function keptRequest(
  db: Database,
  { id, kind, hadCredentials }: Pick<OperationRow, "id" | "kind" | "hadCredentials">,
): KeptRequest | null {
  const stored = operationRequest(db, id);
  if (stored === null) return null;
  const { body, resources } = stored;
  if (kind === "instance") return keptInstance(withDefaults(body as InstanceBody), resources);
  if (kind === "checkpoint") {
    const { instanceId, tag, timeoutSeconds } = body as CheckpointSubmission;
    return { kind, instanceId, tag, timeoutSeconds };
  }
  const { source, tag, timeoutSeconds } = body as ImportBody;
  return { kind, source, tag, timeoutSeconds, hadCredentials };
}

function requestGone(): ApiError {
  return new ApiError("unavailable", "the request of the operation is gone");
}
