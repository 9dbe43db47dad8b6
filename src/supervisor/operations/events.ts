import type { ErrorBody } from "../../domain/errors.ts";
import type { AccountId, OperationId } from "../../domain/ids.ts";
import type { EndStatus, OperationKind } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import type { Metrics, Phase } from "../../metrics.ts";

/** The operation that an event is about. */
export interface OperationRef {
  readonly id: OperationId;
  readonly accountId: AccountId;
  readonly kind: OperationKind;
}

/** Something that happened to an operation; its row says the same already. */
export type OperationEvent =
  | { readonly type: "started"; readonly operation: OperationRef }
  /** it stays PENDING, and the next start of the service takes it up */
  | { readonly type: "postponed"; readonly operation: OperationRef }
  | {
      readonly type: "ended";
      readonly operation: OperationRef;
      readonly status: EndStatus;
      /** null on SUCCESS, and where a cancel ended what had not begun */
      readonly error: ErrorBody | null;
      /** steps with their `milliseconds`; none of an operation that this process did not run */
      readonly phases: readonly (readonly [Phase, number])[];
    };

type Listener = (event: OperationEvent) => void;

/** Tells subscribers, in the order of their subscription, what happened to operations. */
export class OperationEvents {
  readonly #listeners = new Set<Listener>();
  readonly #log: Log;

  constructor(log: Log) {
    this.#log = log;
  }

  /** Calls `listener` in the turn of each event, until disposal. */
  subscribe(listener: Listener): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  /** A subscriber that throws harms neither the others nor the operation. */
  emit(event: OperationEvent): void {
    for (const listener of this.#listeners) {
      try {
        listener(event);
      } catch (error) {
        this.#log.error("an event of an operation was not taken", { operation: event.operation.id, error });
      }
    }
  }
}

/** Writes a line for each event. */
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

/** Counts ends and the time of their steps. */
export function countEvents(
  events: OperationEvents,
  metrics: Pick<Metrics, "operationsEnded" | "spawnPhaseSeconds" | "importPhaseSeconds">,
): Disposable {
  return events.subscribe((event) => {
    if (event.type !== "ended") return;
    const { operation, status, phases } = event;
    metrics.operationsEnded.add({ kind: operation.kind, state: status.toLowerCase() });
    const histogram = operation.kind === "instance" ? metrics.spawnPhaseSeconds : metrics.importPhaseSeconds;
    for (const [phase, ms] of phases) histogram.observe({ phase }, ms / 1000);
  });
}
