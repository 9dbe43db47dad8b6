import type { AccountId, FileId, ImageId, OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import type { Readiness } from "../../domain/readiness.ts";

/** Where the image of an import comes from. */
export type ImportSource =
  /** `reference` is the full spelling, host included, as `parseRegistryReference` gives it */
  | { readonly kind: "registry"; readonly reference: string }
  /** an uploaded file */
  | { readonly kind: "archive"; readonly fileId: FileId; readonly sha256: string };

/** What a registry wants to know of who asks. It is held in memory only, and no longer than the import. */
export interface Credentials {
  readonly username: string;
  readonly password: string;
}

/** An import that was checked and may be queued. */
export interface ImportSubmission {
  readonly source: ImportSource;
  readonly credentials: Credentials | null;
  readonly tag: string | null;
  readonly timeoutSeconds: number;
}

/** One input file of an instance, resolved to its content. */
export interface SubmittedFile {
  /** absolute, normalised path in the sandbox, as text */
  readonly path: string;
  readonly fileId: FileId;
  readonly sha256: string;
  readonly sizeBytes: number;
  /** permission bits, 0 to 0o7777 */
  readonly mode: number;
}

/** An instance that was checked and whose names were resolved. */
export interface InstanceSubmission {
  readonly imageId: ImageId;
  /** what execve gets; `argv[0]` without a slash is looked up through PATH */
  readonly argv: readonly string[];
  /** only what the request gave; PATH, HOME and HOSTNAME are added by the run where they are missing */
  readonly env: Readonly<Record<string, string>>;
  /** absolute, normalised path, as text */
  readonly cwd: string;
  readonly timeoutSeconds: number;
  readonly files: readonly SubmittedFile[];
  readonly truncateOutputAtBytes: number;
  /** ASCII, or `base64:` and standard base64 (see `decodeStdin`); null is /dev/null */
  readonly stdin: string | null;
  readonly hostname: string | null;
  readonly disposable: boolean;
  readonly resources: { readonly vcpus: number; readonly memoryBytes: number; readonly diskBytes: number };
}

/** An instance whose turn has come. */
export interface InstanceRequest extends Omit<InstanceSubmission, "stdin"> {
  /** reads standard input from its beginning, in chunks; null is /dev/null */
  readonly stdin: (() => AsyncIterable<Uint8Array>) | null;
}

/** What became of a request to cancel; `accepted` covers both "ended already" and "will end soon". */
export type CancelOutcome = "accepted" | "terminal" | "not_found";

/** The long-running work, as the HTTP interface sees it. Every operation is a row before `submit…` returns. */
export interface OperationsPort {
  /** @throws ApiError `unavailable`, `too_many_requests`, `insufficient_storage`, or `not_found` for what is gone meanwhile */
  submitImport(accountId: AccountId, submission: ImportSubmission): Promise<{ readonly id: OperationId }>;
  /** @throws as `submitImport` does */
  submitInstance(accountId: AccountId, submission: InstanceSubmission): Promise<{ readonly id: OperationId }>;
  /** Asks for the end of a PENDING or EXECUTING operation; asking twice is accepted twice. */
  cancel(accountId: AccountId, id: OperationId): CancelOutcome;
  /** Resolves when the operation is in a terminal state, `timeoutMs` passed, or `signal` fired; never throws. */
  waitForEnd(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void>;
  /**
   * Looks at the running instance at once and then every second until it ends; null when it does not run.
   * The caller checks beforehand that the instance belongs to the account.
   */
  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null;
  readiness(): Readiness;
}
