import { ApiError } from "../../domain/errors.ts";
import { type LogEvent, type LogEventData, Spid } from "../../domain/log-event.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import type { TerminalSize } from "../../domain/spawn.ts";
import type { InstanceProcess } from "../../supervisor/instance/instance-process.ts";
import { hasReached, type Tap } from "../../supervisor/instance/process-taps.ts";
import { type EventStream, openEvents } from "../events.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { dataOf, noSuchProcess, type ProcessName, resizeTerminal, type StoredTarget, storedTarget } from "./running.ts";

export interface AttachRequest extends ProcessName {
  /** only output of events with greater ids; -1: all */
  readonly since: number;
  /** true: the process waits for this client, which gets all output from now on */
  readonly lossless: boolean;
}

/** How a process ended. */
export type ProcessEnd = Pick<LogEventData["exit"], "exit_code" | "signal" | "timed_out">;

/** An item that an attachment delivers. */
export type Attached =
  | { readonly kind: "output"; readonly stream: OutputStream; readonly bytes: Uint8Array }
  /** all output up to the event `id` was delivered */
  | { readonly kind: "position"; readonly id: number }
  /** number of bytes of the stream that were not logged, or for which a lossless client was too slow */
  | { readonly kind: "dropped"; readonly stream: OutputStream; readonly bytes: number }
  /** null: the process never ran, or the machine or the host failed before the end of the process was known */
  | { readonly kind: "end"; readonly exit: ProcessEnd | null };

/** The output and the input of a process, for one client. The caller must dispose of it. */
export interface Attachment extends Disposable {
  /** Items until the end of the process, for one reader. A lossless reader has read an item when it requests the next. */
  items(): AsyncGenerator<Attached, void, undefined>;
  /**
   * Writes to the standard input of the process. Like `closeInput` and `resize`, it first waits until the process runs; it
   * waits for ever when the process had ended before the attachment.
   * @throws ApiError `conflict` when the input is closed or the process has ended
   */
  write(bytes: Uint8Array, signal: AbortSignal): Promise<void>;
  /** Ends standard input. @throws as `write` does */
  closeInput(signal: AbortSignal): Promise<void>;
  /** Sets the size of the terminal. @throws ApiError `conflict` when the process has none */
  resize(size: TerminalSize): Promise<void>;
}

/**
 * Attaches a client to a running or ended process, or to the command of a queued instance.
 * @throws ApiError `not_found`; `too_many_requests` when the log has too many readers, or the process too many lossless
 *   attachments
 */
export async function attach(
  parts: ServiceParts,
  principal: Principal,
  { id, spid, since, lossless }: AttachRequest,
): Promise<Attachment> {
  const stored = storedTarget(parts, principal, id);
  const left = new AbortController();
  const instance = parts.instances.find(id);
  const isLive = instance?.process(spid) != null;
  const mayStart = spid === Spid.command && !stored.log.hasEnded;
  if (!isLive && !mayStart && !(await wasStarted(parts, principal, stored, spid))) throw noSuchProcess(spid);
  using stack = new DisposableStack();
  stack.defer(() => left.abort());
  // Read all events of an ended process: its end may come before `since`. A lossless client needs all of them to count.
  const from = isLive && !lossless ? since : -1;
  const request = { spid, since: from, follow: true, signal: left.signal };
  const log = { events: stack.use(openEvents(parts, principal, stored.log, request)), since };
  const starts = stack.use(new Starts(lossless));
  stack.use(parts.instances.follow(id, spid, (process) => starts.add(process)));
  starts.requireTap();
  const held = stack.move();
  return {
    items: () => (lossless ? withTap(log, starts) : fromLog(log)),
    write: async (bytes, signal) => await (await starts.latest()).input.write(bytes, signal),
    closeInput: async (signal) => await (await starts.latest()).input.close(signal),
    resize: async (size) => resizeTerminal(await starts.latest(), size),
    [Symbol.dispose]: () => held.dispose(),
  };
}

/** A process and the tap of one client. */
interface Tapped {
  readonly process: InstanceProcess;
  readonly tap: Tap;
}

/** The starts of one process, which is started again when its machine is replaced. */
class Starts implements Disposable {
  readonly #lossless: boolean;
  readonly #first = Promise.withResolvers<void>();
  #latest: InstanceProcess | null = null;
  #next = Promise.withResolvers<Tapped>();
  readonly #taps = new DisposableStack();
  #failure: unknown = null;

  constructor(lossless: boolean) {
    this.#lossless = lossless;
    this.#next.promise.catch(() => undefined);
  }

  /** Never throws: the failure of a reader must not affect the start of the process. */
  add(process: InstanceProcess): void {
    this.#latest = process;
    this.#first.resolve();
    if (!this.#lossless) return;
    try {
      this.#next.resolve({ process, tap: this.#taps.use(process.taps.open()) });
    } catch (error) {
      // `next` and `requireTap` throw it.
      this.#failure = error;
      this.#next.reject(error);
    }
  }

  /** The process of the latest start; pending before the first start, and for ever without one. */
  async latest(): Promise<InstanceProcess> {
    await this.#first.promise;
    if (this.#latest === null) throw new Error("a start without a process");
    return this.#latest;
  }

  /** Waits for the next start; one call at a time. @throws ApiError `too_many_requests` when a tap was refused */
  async next(): Promise<Tapped> {
    const started = await this.#next.promise;
    this.#next = Promise.withResolvers();
    this.#next.promise.catch(() => undefined);
    return started;
  }

  /** @throws ApiError `too_many_requests` when a running process has refused a tap */
  requireTap(): void {
    if (this.#failure !== null) throw this.#failure;
  }

  [Symbol.dispose](): void {
    this.#taps.dispose();
  }
}

/** True when the event log has the start of the process, which is its first event. The agent's number has no start. */
async function wasStarted(
  parts: ServiceParts,
  principal: Principal,
  { log }: StoredTarget,
  spid: number,
): Promise<boolean> {
  const { signal } = new AbortController();
  using events = openEvents(parts, principal, log, { spid, since: -1, follow: false, limit: 1, signal });
  return (await events.next())?.some(({ type }) => type === "spawn") === true;
}

interface LogOfProcess {
  readonly events: EventStream;
  readonly since: number;
}

/** Delivers the logged events of a process, including future ones. */
async function* fromLog({ events, since }: LogOfProcess): AsyncGenerator<Attached, void, undefined> {
  for (let piece = await events.next(); piece !== null; piece = await events.next()) {
    for (const event of piece) {
      const item = itemOf(event, since);
      if (item !== null) yield item;
      if (item?.kind === "end") return;
    }
    const last = piece.at(-1)?.id ?? -1;
    if (last > since) yield { kind: "position", id: last };
  }
  yield LOST;
}

/** Delivers the events that were logged before the tap was opened, and then all output of the tap. */
async function* withTap({ events, since }: LogOfProcess, starts: Starts): AsyncGenerator<Attached, void, undefined> {
  const counted = { stdout: 0, stderr: 0 };
  const nextPiece = () => {
    const piece = Promise.try(() => events.next());
    // Once the tap is read, nothing awaits this promise, which rejects when the client leaves.
    piece.catch(() => undefined);
    return piece;
  };
  let next = nextPiece();
  let start = starts.next();
  let started: Tapped | null = null;
  for (;;) {
    // A start is announced before its first event is logged, so no event can overtake it.
    started ??= await Promise.race([start, next.then(() => null)]);
    if (started !== null && hasReached(started.tap, counted)) {
      if (yield* fromTap(started)) return;
      // The machine was lost before the command began. Another machine may replace it.
      started = null;
      start = starts.next();
      continue;
    }
    const piece = await next;
    if (piece === null) break;
    for (const event of piece) {
      if (started !== null && hasReached(started.tap, counted)) break;
      const logged = started === null ? event : beforeTap(event, started.tap, counted);
      if (event.type === "stdout" || event.type === "stderr") counted[event.type] += event.payload.byteLength;
      const item = itemOf(logged, since);
      if (item !== null) yield item;
      if (item?.kind === "end") return;
    }
    next = nextPiece();
  }
  yield LOST;
}

/** Cuts an event before the tap's first byte: one record of the log may have output from before and after that byte. */
function beforeTap(event: LogEvent, { before }: Tap, counted: Readonly<Record<OutputStream, number>>): LogEvent {
  if (event.type !== "stdout" && event.type !== "stderr") return event;
  const bytes = Math.max(0, before[event.type].kept - counted[event.type]);
  return { ...event, payload: event.payload.subarray(0, bytes) };
}

/** Delivers the output of a tap and the end of its process. Returns false when the process never ran. */
async function* fromTap({ process: tapped, tap }: Tapped): AsyncGenerator<Attached, boolean, undefined> {
  for (const stream of OUTPUT_STREAMS) {
    const { dropped } = tap.before[stream];
    if (dropped > 0) yield { kind: "dropped", stream, bytes: dropped };
  }
  for await (const chunk of tap.chunks()) yield { kind: "output", ...chunk };
  if (tap.hasLeft) return true;
  for (const stream of OUTPUT_STREAMS) {
    const bytes = tap.missed[stream];
    if (bytes > 0) yield { kind: "dropped", stream, bytes };
  }
  try {
    const { exitCode, signal, timedOut } = await tapped.exit;
    yield { kind: "end", exit: { exit_code: exitCode, signal, timed_out: timedOut } };
  } catch (error) {
    const isReplaced = error instanceof ApiError && !(await hasRun(tapped));
    if (isReplaced) return false;
    yield LOST;
  }
  return true;
}

async function hasRun(process: InstanceProcess): Promise<boolean> {
  return await process.started.then(
    () => true,
    () => false,
  );
}

const LOST: Attached = { kind: "end", exit: null };

/** The item for an event; null for output that the client has seen, and for events of other types. */
function itemOf(event: LogEvent, since: number): Attached | null {
  switch (event.type) {
    case "stdout":
    case "stderr":
      return event.id > since ? { kind: "output", stream: event.type, bytes: event.payload } : null;
    case "truncated": {
      if (event.id <= since) return null;
      const { stream, bytes_dropped } = dataOf<"truncated">(event);
      return { kind: "dropped", stream, bytes: bytes_dropped };
    }
    case "exit": {
      const { exit_code, signal, timed_out } = dataOf<"exit">(event);
      return { kind: "end", exit: { exit_code, signal, timed_out } };
    }
    case "completion":
      return LOST;
    default:
      return null;
  }
}
