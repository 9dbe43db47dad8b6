import { imageSizes } from "../db/images/images.ts";
import { listOperations } from "../db/operation-listing.ts";
import { getOperation, type OperationRow } from "../db/operations.ts";
import { ApiError } from "../domain/errors.ts";
import type { ImageId, OperationId } from "../domain/ids.ts";
import { Spid } from "../domain/log-event.ts";
import type { NetworkAudit } from "../domain/network.ts";
import {
  isTerminal,
  type OperationKind,
  type OperationStatus,
  type StoredInstanceResult,
} from "../domain/operation.ts";
import type { OutputStream } from "../domain/output.ts";
import { timeBounds } from "../domain/text/time-bound.ts";
import { openProcessOutput } from "../storage/outputs.ts";
import { type KeptRequest, KINDS } from "../supervisor/kinds/kinds.ts";
import type { OperationLine } from "../supervisor/operations/operation-log.ts";
import { keptRequest } from "../supervisor/operations/requests.ts";
import { type Changed, change } from "./change.ts";
import { type EventStream, type EventsRequest, operationLog as logOf, openEventArray, openEvents } from "./events.ts";
import type { ListRequest, Principal, ServiceParts } from "./parts.ts";
import { pacedRequestLines } from "./request-lines.ts";
import { type OutputSource, type Outputs, openOutputs, RecentOutputs } from "./running/outputs.ts";

export type { KeptRequest };

/**
 * An operation. The `result` of an instance does not include the outputs; a listing has no `network`. `imageId` is the image
 * that an instance starts from while it exists, or that an import reused. Times are `milliseconds` since the epoch.
 */
export type Operation = Pick<
  OperationRow,
  | "id"
  | "imageId"
  | "kind"
  | "status"
  | "createdAt"
  | "startedAt"
  | "finishedAt"
  | "result"
  | "error"
  | "parentId"
  | "forkedAtEvent"
> & { readonly network?: NetworkAudit | null };

export interface ListOperations extends ListRequest {
  readonly status?: OperationStatus | undefined;
  readonly kind?: OperationKind | undefined;
  /** only operations of these kinds, two at least, unless `kind` is given */
  readonly kinds?: readonly OperationKind[] | undefined;
}

export interface OperationEvents extends EventsRequest {
  readonly id: OperationId;
}

export interface OperationUseCases {
  /**
   * Lists operations, the newest first.
   * @throws ApiError `validation_error` when a time bound is malformed; as `Scans.all` does
   */
  list(principal: Principal, request: ListOperations): Promise<readonly Operation[]>;
  /**
   * One line about the request of each of these operations: the beginning of its command, or the image that it imports. An
   * operation whose request was not kept, or is long, is left out.
   */
  lines(ids: readonly OperationId[]): Promise<ReadonlyMap<OperationId, string>>;
  /** Sizes of images that operations have made, in `bytes`, without deleted images. */
  imageSizes(principal: Principal, ids: readonly ImageId[]): ReadonlyMap<ImageId, number>;
  /** @throws ApiError `not_found` */
  get(principal: Principal, id: OperationId): Operation;
  /**
   * Waits until the operation ends, `waitMs` pass or `signal` fires, and returns the operation as it is then.
   * @throws ApiError `not_found`
   */
  wait(principal: Principal, id: OperationId, waitMs: number, signal: AbortSignal): Promise<Operation>;
  /** Requests the end of the operation, and returns it. @throws ApiError `not_found`, or `conflict` when it has ended */
  cancel(principal: Principal, id: OperationId): Changed<Operation>;
  /**
   * The request, without values of variables, standard input and passwords. Null when it was not kept.
   * @throws ApiError `not_found`
   */
  request(principal: Principal, id: OperationId): KeptRequest | null;
  /** The lines that the service has logged about the operation since the service started. @throws ApiError `not_found` */
  log(principal: Principal, id: OperationId): readonly OperationLine[];
  /**
   * Reads the event log of the operation. The stream must be disposed of.
   * @throws ApiError `not_found`, or `too_many_requests` when too many clients read events
   */
  events(principal: Principal, request: OperationEvents): EventStream;
  /**
   * Reads the event log up to the latest event, for a reply that has all of it.
   * @throws ApiError like `events`, and as `Accounts.wait` does
   */
  eventArray(principal: Principal, request: OperationEvents): Promise<EventStream>;
  /**
   * Opens the outputs of an instance that has ended. `operation` must come from one of these use cases.
   * @throws ApiError as `Accounts.wait` does
   */
  outputs(principal: Principal, operation: Operation, signal: AbortSignal): Promise<Outputs>;
}

export function operationUseCases(parts: ServiceParts): OperationUseCases {
  const { db, layout, operations, operationLog, clock } = parts;
  const recent = new RecentOutputs();
  const get = ({ accountId }: Principal, id: OperationId): OperationRow => {
    const row = getOperation(db, accountId, id);
    if (row === null) throw noSuchOperation(id);
    return row;
  };
  return {
    async list({ accountId }, { since, until, ...filter }) {
      return await listOperations(db, accountId, { ...filter, ...timeBounds({ since, until }, clock()) });
    },
    lines: (ids) => pacedRequestLines(db, ids),
    imageSizes: ({ accountId }, ids) => imageSizes(db, accountId, ids),
    get,
    async wait(principal, id, waitMs, signal) {
      const row = get(principal, id);
      if (waitMs === 0 || isTerminal(row.status)) return row;
      await operations.waitForEnd(id, waitMs, signal);
      return get(principal, id);
    },
    cancel(principal, id) {
      return change(parts, principal, { noun: "operation", verb: "cancel", id }, () => {
        const outcome = operations.cancel(principal.accountId, id);
        if (outcome === "not_found") throw noSuchOperation(id);
        const row = get(principal, id);
        if (outcome === "terminal") {
          throw new ApiError("conflict", `the operation has ended: ${row.status}`, { status: row.status });
        }
        return row;
      });
    },
    request: (principal, id) => keptRequest(KINDS, db, get(principal, id)),
    log(principal, id) {
      get(principal, id);
      return operationLog.lines(id);
    },
    events: (principal, request) =>
      openEvents(parts, principal, logOf(parts, principal, get(principal, request.id)), request),
    eventArray: (principal, request) =>
      openEventArray(parts, principal, () => logOf(parts, principal, get(principal, request.id)), request),
    outputs(principal, { id, result }, signal) {
      const stored = result as StoredInstanceResult;
      const open = (stream: OutputStream) =>
        openProcessOutput(layout, id, { spid: Spid.command, stream, bytes: stored[stream].bytes });
      const source: OutputSource = {
        bytes: { stdout: stored.stdout.bytes, stderr: stored.stderr.bytes },
        open: (stream) => recent.read(id, stream, open),
      };
      return openOutputs(parts, principal, source, signal);
    },
  };
}

function noSuchOperation(id: OperationId): ApiError {
  return new ApiError("not_found", "no such operation", { id });
}
