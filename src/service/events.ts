import { getOperation, type OperationRow } from "../db/operations.ts";
import { given } from "../domain/given.ts";
import type { OperationId } from "../domain/ids.ts";
import { type CompletionData, type LogEvent, nsOf } from "../domain/log-event.ts";
import { type EndStatus, isTerminal, type StoredInstanceResult } from "../domain/operation.ts";
import type { LogReader } from "../storage/events/log-reader.ts";
import type { Principal, ServiceParts } from "./parts.ts";

export interface EventsRequest {
  readonly id: OperationId;
  /** only events with greater ids; -1: all */
  readonly since: number;
  /** true: until the operation has ended; false: up to the latest event */
  readonly follow: boolean;
  /** only events of this process, and the completion */
  readonly spid?: number | undefined;
  /** largest number of events, including the completion */
  readonly limit?: number | undefined;
  /** ends the search or the wait for the next event */
  readonly signal: AbortSignal;
}

/** Null at the end of a stream. */
type NextEvents = readonly LogEvent[] | null;

/** Events of one operation for one client, in the order of the log. The caller must dispose of it. */
export interface EventStream extends Disposable {
  /**
   * The next events, at most 96 KiB; null at the end. Followers at the same place of a log get the same array. The result is
   * a promise only when it must wait.
   * @throws the reason of the request's `signal`
   */
  next(): NextEvents | Promise<NextEvents>;
}

/**
 * Opens the event log of an operation. The `completion` is not in the log: it is made from the operation's row after the last
 * event, so no client sees it before the operation has ended.
 * @throws ApiError `too_many_requests` when too many clients read events
 */
export function openEvents(
  { db, eventLogs, instances }: Pick<ServiceParts, "db" | "eventLogs" | "instances">,
  { accountId }: Principal,
  row: OperationRow,
  request: EventsRequest,
): EventStream {
  const hasEnded = isTerminal(row.status);
  const first = request.spid === undefined ? 0 : instances.firstEventOf(row.id, request.spid);
  const reader = eventLogs.read(accountId, row.id, Math.max(request.since, first - 1), hasEnded);
  return new OperationEventStream(reader, request, hasEnded, () => getOperation(db, accountId, row.id));
}

class OperationEventStream implements EventStream {
  readonly #reader: LogReader;
  readonly #request: EventsRequest;
  readonly #row: () => OperationRow | null;
  #leftCount: number;
  /** known to be in a terminal state before the latest read */
  #hasEnded: boolean;

  constructor(reader: LogReader, request: EventsRequest, hasEnded: boolean, row: () => OperationRow | null) {
    this.#reader = reader;
    this.#request = request;
    this.#row = row;
    this.#hasEnded = hasEnded;
    this.#leftCount = request.limit ?? Number.POSITIVE_INFINITY;
  }

  next(): NextEvents | Promise<NextEvents> {
    if (this.#leftCount === 0) return null;
    this.#request.signal.throwIfAborted();
    const { isOver } = this.#reader;
    const events = this.#reader.next();
    const selection = events instanceof Promise ? [] : this.#select(events);
    return selection.length > 0 ? selection : this.#nextAfter(events, isOver);
  }

  /** @param wasOver whether the log was over before that read */
  async #nextAfter(pending: ReturnType<LogReader["next"]>, wasOver: boolean): Promise<NextEvents> {
    const { follow, signal } = this.#request;
    let events = pending instanceof Promise ? await pending : pending;
    for (let isOver = wasOver; ; ) {
      const selection = this.#select(events);
      if (selection.length > 0) return selection;
      if (events.length === 0) {
        if (isOver && this.#hasEnded) return this.#completion();
        // A stop of the service also ends readers. The operation may end after that: then there is more to read.
        if (isOver) this.#hasEnded = isTerminal(this.#row()?.status ?? "PENDING");
        if (isOver ? !this.#hasEnded : !follow) return null;
        if (!isOver) await this.#reader.changed(signal);
      }
      // A log can have a million events that do not match the request.
      signal.throwIfAborted();
      ({ isOver } = this.#reader);
      const read = this.#reader.next();
      events = read instanceof Promise ? await read : read;
    }
  }

  [Symbol.dispose](): void {
    this.#reader[Symbol.dispose]();
  }

  /** The events that match the request. */
  #select(events: readonly LogEvent[]): readonly LogEvent[] {
    const { spid } = this.#request;
    const ofProcess = spid === undefined ? events : events.filter((event) => event.spid === spid);
    const selection = ofProcess.length <= this.#leftCount ? ofProcess : ofProcess.slice(0, this.#leftCount);
    this.#leftCount -= selection.length;
    return selection;
  }

  /** The completion; null when the client has seen it, or the operation was deleted. */
  #completion(): readonly LogEvent[] | null {
    this.#leftCount = 0;
    const row = this.#row();
    const id = this.#reader.nextId;
    if (row === null || row.finishedAt === null || this.#request.since === id) return null;
    const payload = Buffer.from(JSON.stringify(completionOf(row)), "utf8");
    return [{ id, timeNs: nsOf(row.finishedAt), spid: null, type: "completion", payload }];
  }
}

function completionOf({ status, error, result, startedAt, finishedAt }: OperationRow): CompletionData {
  const { image } = (result ?? {}) as Partial<StoredInstanceResult>;
  return {
    status: status as EndStatus,
    duration_ms: startedAt === null || finishedAt === null ? 0 : Math.max(0, finishedAt - startedAt),
    ...given({ image, error }),
  };
}
