import type { ErrorBody } from "../../domain/errors.ts";
import type { AccountId, ImageId, OperationId } from "../../domain/ids.ts";
import type { EndStatus, OperationKind } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import type { Metrics, Phase } from "../../metrics.ts";

/** The operation that an event is about. */
export interface OperationRef {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
}

/** A change of an operation's state. It is emitted after the row has been updated. */
export type OperationEvent =
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

type Listener = (event: OperationEvent) => void;

/** Emits operation events to subscribers, in the order in which they subscribed. */
export class OperationEvents {
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
  emit(event: OperationEvent): void {
    for (const listener of this.#listeners) {
      try {
        listener(event);
      } catch (error) {
        this.#log.error("a subscriber failed to handle an operation event", { operation: event.operation.id, error });
      }
    }
  }
}

/** Logs the start and the end of each operation. */
export function logEvents(events: OperationEvents, log: Log): Disposable {
  return events.subscribe((event) => {
    const { id, kind } = event.operation;
    if (event.type === "started") log.info("operation started", { operation: id, kind });
    if (event.type !== "ended") return;
    const { status, error, phases } = event;
    const why = error === null ? {} : { error: error.error, reason: error.message };
    const shown = Object.fromEntries(phases.map(([phase, ms]) => [`${phase}_ms`, Math.round(ms)]));
    log.info("operation ended", { operation: id, status, ...why, phases: shown });
  });
}

/** Counts the operations that end, and records the duration of their steps. */
export function countEvents(
  events: OperationEvents,
  metrics: Pick<Metrics, "operationsEnded" | "spawnPhaseSeconds" | "importPhaseSeconds" | "checkpointPhaseSeconds">,
): Disposable {
  return events.subscribe((event) => {
    if (event.type !== "ended") return;
    const { operation, status, phases } = event;
    metrics.operationsEnded.add({ kind: operation.kind, state: status.toLowerCase() });
    const histogram = {
      image_import: metrics.importPhaseSeconds,
      instance: metrics.spawnPhaseSeconds,
      checkpoint: metrics.checkpointPhaseSeconds,
    }[operation.kind];
    for (const [phase, ms] of phases) histogram.observe({ phase }, ms / 1000);
  });
}
