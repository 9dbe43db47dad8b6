import type { ErrorBody } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import type { EndStatus, OperationKind, Phase } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import type { Metrics } from "../../metrics.ts";
import type { EventLogs } from "../../storage/events/event-logs.ts";

/** The operation that changed. */
export interface OperationRef {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
}

/** A change of an operation's state. It is emitted after the row has been updated. */
export type OperationChange =
  | { readonly type: "accepted"; readonly operation: OperationRef }
  | { readonly type: "started"; readonly operation: OperationRef }
  /** the service stops; the operation stays PENDING and runs after the next start */
  | { readonly type: "postponed"; readonly operation: OperationRef }
  | {
      readonly type: "ended";
      readonly operation: OperationRef;
      readonly status: EndStatus;
      /** null on SUCCESS, and when a cancel ended an operation that had not begun */
      readonly error: ErrorBody | null;
      /** steps with their duration in `milliseconds`; empty when another process ran the operation */
      readonly phases: readonly (readonly [Phase, number])[];
      /** the image that has lost a tag to the result, if there is one */
      readonly untagged?: ImageId | undefined;
    };

type Listener = (change: OperationChange) => void;

/** Emits changes of operations to subscribers, in the order in which they subscribed. */
export class OperationChanges {
  readonly #listeners = new Set<Listener>();
  readonly #log: Log;

  constructor(log: Log) {
    this.#log = log;
  }

  /** Calls `listener` synchronously with each event, until it is disposed. */
  subscribe(listener: Listener): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  /** Never throws: an error of one subscriber is logged and affects neither the others nor the operation. */
  emit(change: OperationChange): void {
    for (const listener of this.#listeners) {
      try {
        listener(change);
      } catch (error) {
        this.#log.error("a subscriber failed to handle a change of an operation", {
          operation: change.operation.id,
          error,
        });
      }
    }
  }
}

/** Ends the readers of an operation's log when no more events follow. */
export function endReaders(changes: OperationChanges, eventLogs: Pick<EventLogs, "endReaders">): Disposable {
  return changes.subscribe(({ type, operation }) => {
    if (type === "ended" || type === "postponed") eventLogs.endReaders(operation.id);
  });
}

/** Logs the start and the end of each operation. */
export function logChanges(changes: OperationChanges, log: Log): Disposable {
  return changes.subscribe((change) => {
    const { id, kind } = change.operation;
    if (change.type === "started") log.info("operation started", { operation: id, kind });
    if (change.type !== "ended") return;
    const { status, error, phases } = change;
    const why = error === null ? {} : { error: error.error, reason: error.message };
    const durations = Object.fromEntries(phases.map(([phase, ms]) => [`${phase}_ms`, Math.round(ms)]));
    log.info("operation ended", { operation: id, status, ...why, phases: durations });
  });
}

/** Counts the operations that end, and records the duration of their steps. */
export function countChanges(
  changes: OperationChanges,
  metrics: Pick<Metrics, "operationsEnded" | "phaseSeconds">,
): Disposable {
  return changes.subscribe((change) => {
    if (change.type !== "ended") return;
    const { operation, status, phases } = change;
    metrics.operationsEnded.add({ kind: operation.kind, state: status.toLowerCase() });
    const histogram = metrics.phaseSeconds[operation.kind];
    for (const [phase, ms] of phases) histogram.observe({ phase }, ms / 1000);
  });
}
