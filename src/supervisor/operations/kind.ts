import type { NewRequest, StoredRequest } from "../../db/requests.ts";
import type { ImageId, OperationId } from "../../domain/ids.ts";
import type { OperationKind } from "../../domain/operation.ts";
import type { Worker } from "./work.ts";

/** Credentials for a registry. They are held in memory only, and no longer than the import. */
export interface Credentials {
  readonly username: string;
  readonly password: string;
}

/** A request that waits for its turn, in its stored form. */
export interface WaitingRequest {
  readonly row: NewRequest & { readonly sizeBytes: number };
  /** standard input that is stored as a file; null when there is none, or when the row holds it */
  readonly stdin: Uint8Array | null;
  /** held in memory only: after a restart, a waiting operation that has any fails */
  readonly credentials: Credentials | null;
  /** the image that the operation uses; null: none */
  readonly imageId: ImageId | null;
}

/** A stored request, as the kind reads it when the operation starts. */
export interface ReadableRequest extends StoredRequest {
  readonly id: OperationId;
  readonly credentials: Credentials | null;
  readonly stdin: {
    /** size of the file of standard input in `bytes`; null when there is none */
    size(): Promise<number | null>;
    /** The file in chunks. It is opened when the first chunk is requested. */
    read(): AsyncIterable<Uint8Array>;
  };
}

/**
 * A kind of operation: the stored form of its requests, the part that clients can read later, and the worker.
 * @typeParam Submission a validated request
 * @typeParam Request the request that the worker receives
 * @typeParam Kept the part of a request that clients can read as long as its operation is stored
 * @typeParam Tools dependencies of the worker
 */
export interface Kind<Submission, Request, Kept, Tools> {
  readonly name: OperationKind;
  store(submission: Submission): WaitingRequest;
  /** @throws ApiError `unavailable` when a part of the request is gone */
  read(request: ReadableRequest): Request | Promise<Request>;
  /** The request without values of variables, standard input and passwords. */
  kept(request: StoredRequest, row: { readonly hadCredentials: boolean }): Kept;
  worker(tools: Tools): Worker<Submission, Request>;
}

/** A kind with its worker: an entry of the table of `Operations`. */
export interface KindAtWork extends Omit<Worker<unknown, never>, "prepare"> {
  readonly name: OperationKind;
  /** As `reserve`, for a stored request, whose reservation has ended with a former process. @throws as `reserve` does */
  reserveAgain(request: ReadableRequest): Promise<Disposable | null>;
  prepare(
    operation: Parameters<Worker<unknown, never>["prepare"]>[0],
    request: ReadableRequest,
    context: Parameters<Worker<unknown, never>["prepare"]>[2],
  ): ReturnType<Worker<unknown, never>["prepare"]>;
}

export function atWork<Submission, Request, Kept, Tools>(
  kind: Kind<Submission, Request, Kept, Tools>,
  tools: Tools,
): KindAtWork {
  const worker = kind.worker(tools);
  return {
    name: kind.name,
    cost: (resources) => worker.cost(resources),
    reserve: (submission) => worker.reserve?.(submission as Submission) ?? null,
    reserveAgain: async (request) => worker.reserve?.(await kind.read(request)) ?? null,
    prepare: async (operation, request, context) => worker.prepare(operation, await kind.read(request), context),
  };
}
