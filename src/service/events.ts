import { getOperation, type OperationRow } from "../db/operations.ts";
import { given } from "../domain/given.ts";
import type { LogId, OperationId } from "../domain/ids.ts";
import { type CompletionData, type LogEvent, type LogEventData, nsOf } from "../domain/log-event.ts";
import { type EndStatus, isTerminal, type StoredInstanceResult } from "../domain/operation.ts";
import type { LogReader } from "../storage/events/log-reader.ts";
import type { Principal, ServiceParts } from "./parts.ts";

export interface EventsRequest {
  /** only events with greater ids; -1: all */
  readonly since: number;
  /** true: until the log is complete; false: up to the latest event */
  readonly follow: boolean;
  /** only events of this process, `dropped`, and the last one, such as the end of a sandbox */
  readonly spid?: number | undefined;
  /** Returns the id of the event before which the stream ends; it may change while the stream waits. Absent: no such id. */
  readonly until?: () => number;
  /** true: with those of `spid`, the changes of a sandbox's state, and the notice that its time ends */
  readonly withStates?: boolean | undefined;
  /** largest number of events, including the last one */
  readonly limit?: number | undefined;
  /** ends the search or the wait for the next event */
  readonly signal: AbortSignal;
}

/** Null at the end of a stream. */
type NextEvents = readonly LogEvent[] | null;

/** Events of one log for one client, in the order of the log. The caller must dispose of it. */
export interface EventStream extends Disposable {
  /**
   * The next events, at most 96 KiB; null at the end. Followers at the same place of a log get the same array. The result is
   * a promise only when it must wait.
   * @throws the reason of the request's `signal`
   */
  next(): NextEvents | Promise<NextEvents>;
}

/** The event log of one object. */
export interface LogSource {
  readonly id: LogId;
  /** true: the log was complete when the source was made */
  readonly hasEnded: boolean;
  /** the operation of the machine that writes to the log, or did so last; null: there was none */
  readonly instance: OperationId | null;
  /** Whether the log is complete now. */
  isComplete(): boolean;
  /** The event that follows the last one of a complete log, with that id; null when there is none. */
  last(id: number): LogEvent | null;
}

/**
 * The log of an operation. The `completion` is not in the log: it is made from the operation's row after the last event, so no
 * client sees it before the operation has ended.
 */
export function operationLog({ db }: Pick<ServiceParts, "db">, { accountId }: Principal, row: OperationRow): LogSource {
  const { id } = row;
  return {
    id,
    instance: id,
    hasEnded: isTerminal(row.status),
    isComplete: () => isTerminal(getOperation(db, accountId, id)?.status ?? "PENDING"),
    last(eventId) {
      const ended = getOperation(db, accountId, id);
      if (ended === null || ended.finishedAt === null) return null;
      const payload = Buffer.from(JSON.stringify(completionOf(ended)), "utf8");
      return { id: eventId, timeNs: nsOf(ended.finishedAt), spid: null, type: "completion", payload };
    },
  };
}

/** Opens an event log. @throws ApiError `too_many_requests` when too many clients read events */
export function openEvents(
  { eventLogs, instances }: Pick<ServiceParts, "eventLogs" | "instances">,
  { accountId }: Principal,
  log: LogSource,
  request: EventsRequest,
): EventStream {
  const { spid } = request;
  const first = spid === undefined || log.instance === null ? 0 : instances.firstEventOf(log.instance, spid);
  const reader = eventLogs.read(accountId, log.id, Math.max(request.since, first - 1), log.hasEnded);
  return new LoggedEvents(reader, request, log);
}

/**
 * Opens an event log for an answer that has all of it.
 * @param source called before and after the wait for a place, so that a log that ends meanwhile is read to its end
 * @throws ApiError as `openEvents`, `source` and `Accounts.wait` do
 */
export async function openEventArray(
  parts: Pick<ServiceParts, "accounts" | "eventLogs" | "instances">,
  principal: Principal,
  source: () => LogSource,
  request: EventsRequest,
): Promise<EventStream> {
  source();
  using undo = new DisposableStack();
  undo.use(await parts.accounts.wait(principal.accountId, "replies", { signal: request.signal }));
  const events = undo.use(openEvents(parts, principal, source(), request));
  const held = undo.move();
  return { next: () => events.next(), [Symbol.dispose]: () => held.dispose() };
}

class LoggedEvents implements EventStream {
  readonly #reader: LogReader;
  readonly #request: EventsRequest;
  readonly #log: LogSource;
  #leftCount: number;
  /** known to be complete before the latest read */
  #hasEnded: boolean;

  constructor(reader: LogReader, request: EventsRequest, log: LogSource) {
    this.#reader = reader;
    this.#request = request;
    this.#log = log;
    this.#hasEnded = log.hasEnded;
    this.#leftCount = request.limit ?? Number.POSITIVE_INFINITY;
  }

  next(): NextEvents | Promise<NextEvents> {
    if (this.#leftCount === 0 || this.#isPast) return null;
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
      if (this.#isPast) return null;
      if (events.length === 0) {
        if (isOver && this.#hasEnded) return this.#last();
        // A stop of the service also ends readers. The operation may end after that: then there is more to read.
        if (isOver) this.#hasEnded = this.#log.isComplete();
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

  /** True when all events before the end of the request were read. */
  get #isPast(): boolean {
    const { until } = this.#request;
    return until !== undefined && this.#reader.nextId >= until();
  }

  /** The events that match the request. */
  #select(events: readonly LogEvent[]): readonly LogEvent[] {
    const { spid, withStates = false, until } = this.#request;
    const last = events.at(-1);
    const end = until?.() ?? Number.POSITIVE_INFINITY;
    const early = last === undefined || last.id < end ? events : events.filter(({ id }) => id < end);
    const isOf = (event: LogEvent) => {
      if (event.type === "state") return withStates || isEnd(event);
      return event.spid === spid || event.type === "dropped" || (withStates && event.type === "ends_soon");
    };
    const ofProcess = spid === undefined ? early : early.filter(isOf);
    const selection = ofProcess.length <= this.#leftCount ? ofProcess : ofProcess.slice(0, this.#leftCount);
    this.#leftCount -= selection.length;
    return selection;
  }

  /** The event after those of the log; null when there is none, or when the client has seen it. */
  #last(): readonly LogEvent[] | null {
    this.#leftCount = 0;
    const id = this.#reader.nextId;
    const last = this.#request.since === id ? null : this.#log.last(id);
    return last === null ? null : [last];
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

/** True for the event after which a sandbox has no others. */
function isEnd({ payload }: LogEvent): boolean {
  const { to } = JSON.parse(Buffer.from(payload).toString("utf8")) as LogEventData["state"];
  return to === "ended";
}
