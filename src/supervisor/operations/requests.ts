import type { Database } from "../../db/database.ts";
import type { OperationRow } from "../../db/operations.ts";
import { liveOperationsOf, operationRequest, type StoredRequest } from "../../db/requests.ts";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { DataLayout } from "../../storage/layout.ts";
import { readStdin, removeStdin, stdinBytes, sweepStdin, writeStdin } from "../../storage/requests.ts";
import { type Keepable, removedUnlessKept } from "../../system/scratch.ts";
import type { Credentials, Kind, ReadableRequest, WaitingRequest } from "./kind.ts";

/** Size of `value` as JSON, in `bytes`. */
export function jsonBytes(value: object): number {
  return Buffer.byteLength(JSON.stringify(value));
}

/** Stores the requests of operations on disk: as rows, and as files for large standard inputs. It holds nothing in memory. */
export class Requests {
  readonly #db: Database;
  readonly #layout: DataLayout;

  constructor(db: Database, layout: DataLayout) {
    this.#db = db;
    this.#layout = layout;
  }

  /** Writes the file of a large standard input. It is removed at disposal, unless it is kept. */
  async stage(id: OperationId, { stdin }: Pick<WaitingRequest, "stdin">): Promise<Keepable> {
    await using undo = new AsyncDisposableStack();
    const staged = undo.use(removedUnlessKept(() => removeStdin(this.#layout, id)));
    if (stdin !== null) await writeStdin(this.#layout, id, stdin);
    undo.move();
    return staged;
  }

  /** @throws ApiError `unavailable` when the request is gone */
  stored(id: OperationId): StoredRequest {
    const stored = operationRequest(this.#db, id);
    if (stored === null) throw requestGone();
    return stored;
  }

  /** The request of an operation that starts now. @throws as `stored` does */
  readable(id: OperationId, credentials: Credentials | null): ReadableRequest {
    const stdin = { size: () => stdinBytes(this.#layout, id), read: () => readStdin(this.#layout, id) };
    return { ...this.stored(id), id, credentials, stdin };
  }

  /** Removes the files of an ended operation's request. */
  async forget(id: OperationId): Promise<void> {
    await removeStdin(this.#layout, id);
  }

  /** Removes request files that a former process left of ended operations. No request may be staged meanwhile. */
  async sweep(): Promise<void> {
    await sweepStdin(this.#layout, (ids) => liveOperationsOf(this.#db, ids));
  }
}

/** The part of a table of kinds that makes the kept form of stored requests. */
type KeepingTable = Readonly<Record<string, Pick<Kind<never, unknown, unknown, never>, "kept">>>;

/** The request of an operation, in the kept form of its kind in the table `kinds`; null when it was not kept. */
export function keptRequest<Table extends KeepingTable>(
  kinds: Table,
  db: Database,
  row: Pick<OperationRow, "id" | "kind" | "hadCredentials">,
): ReturnType<Table[keyof Table]["kept"]> | null {
  const stored = operationRequest(db, row.id);
  if (stored === null) return null;
  return (kinds[row.kind]?.kept(stored, row) ?? null) as ReturnType<Table[keyof Table]["kept"]> | null;
}

/** The error for an operation whose request cannot be read. */
export function requestGone(): ApiError {
  return new ApiError("unavailable", "the request of the operation is gone");
}
