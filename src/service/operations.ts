import { getOperation, listOperations, type OperationRow } from "../db/operations.ts";
import { ApiError } from "../domain/errors.ts";
import type { OperationId } from "../domain/ids.ts";
import type { NetworkAudit } from "../domain/network.ts";
import {
  isTerminal,
  type OperationKind,
  type OperationStatus,
  type StoredInstanceResult,
} from "../domain/operation.ts";
import type { OutputStream } from "../domain/output.ts";
import { timeBounds } from "../domain/time-bound.ts";
import { LongOutput, openOutput } from "../storage/outputs.ts";
import type { OperationLine } from "../supervisor/operations/operation-log.ts";
import { type EventStream, type EventsRequest, openEvents } from "./events.ts";
import type { ListRequest, Principal, ServiceParts } from "./parts.ts";

/**
 * An operation. The `result` of an instance does not include the outputs; a listing has no `network`. Times are `milliseconds` since the epoch.
 */
export type Operation = Pick<
  OperationRow,
  "id" | "kind" | "status" | "createdAt" | "startedAt" | "finishedAt" | "result" | "error"
> & { readonly network?: NetworkAudit | null };

export interface ListOperations extends ListRequest {
  readonly status?: OperationStatus | undefined;
  readonly kind?: OperationKind | undefined;
}

/** The captured output of a stream: all its bytes, or a file that stays open until disposal. */
export type Output =
  | { readonly kind: "short"; readonly bytes: Uint8Array }
  | ({ readonly kind: "long" } & Disposable & Pick<LongOutput, "isAscii" | "text">);

export interface OperationUseCases {
  /** Lists operations, the newest first. @throws ApiError `validation_error` when a time bound is malformed */
  list(principal: Principal, request: ListOperations): Promise<readonly Operation[]>;
  /** @throws ApiError `not_found` */
  get(principal: Principal, id: OperationId): Operation;
  /**
   * Waits until the operation ends, `waitMs` pass or `signal` fires, and returns the operation as it is then.
   * @throws ApiError `not_found`
   */
  wait(principal: Principal, id: OperationId, waitMs: number, signal: AbortSignal): Promise<Operation>;
  /** Asks the operation to end, and returns it. @throws ApiError `not_found`, or `conflict` when it has ended */
  cancel(principal: Principal, id: OperationId): Operation;
  /** The lines that the service has logged about the operation since the service started. @throws ApiError `not_found` */
  log(principal: Principal, id: OperationId): readonly OperationLine[];
  /**
   * Reads the event log of the operation. The stream must be disposed of.
   * @throws ApiError `not_found`, or `too_many_requests` when too many clients read events
   */
  events(principal: Principal, request: EventsRequest): EventStream;
  /** Reads an output of an instance that has ended. `operation` must come from one of these use cases. */
  output(operation: Operation, stream: OutputStream): Promise<Output>;
}

export function operationUseCases(parts: ServiceParts): OperationUseCases {
  const { db, layout, operations, operationLog, clock } = parts;
  const get = ({ accountId }: Principal, id: OperationId): OperationRow => {
    const row = getOperation(db, accountId, id);
    if (row === null) throw noSuchOperation(id);
    return row;
  };
  return {
    async list({ accountId }, { limit, offset, status, kind, ...times }) {
      const bounds = timeBounds(times, clock());
      return await listOperations(db, accountId, { limit, offset, status, kind, ...bounds });
    },
    get,
    async wait(principal, id, waitMs, signal) {
      const row = get(principal, id);
      if (waitMs === 0 || isTerminal(row.status)) return row;
      await operations.waitForEnd(id, waitMs, signal);
      return get(principal, id);
    },
    cancel(principal, id) {
      const outcome = operations.cancel(principal.accountId, id);
      if (outcome === "not_found") throw noSuchOperation(id);
      const row = get(principal, id);
      if (outcome === "terminal") {
        throw new ApiError("conflict", `the operation has ended: ${row.status}`, { status: row.status });
      }
      return row;
    },
    log(principal, id) {
      get(principal, id);
      return operationLog.lines(id);
    },
    events: (principal, request) => openEvents(parts, principal, get(principal, request.id), request),
    async output({ id, result }, stream) {
      const { [stream]: stored } = result as StoredInstanceResult;
      return outputOf(await openOutput(layout, id, stream, stored));
    },
  };
}

/** Wraps an output that the storage has opened. */
export function outputOf(output: Uint8Array | LongOutput): Output {
  if (!(output instanceof LongOutput)) return { kind: "short", bytes: output };
  return {
    kind: "long",
    isAscii: () => output.isAscii(),
    text: (encoding) => output.text(encoding),
    [Symbol.dispose]: () => output[Symbol.dispose](),
  };
}

function noSuchOperation(id: OperationId): ApiError {
  return new ApiError("not_found", "no such operation", { id });
}
