import { ApiError } from "../../domain/errors.ts";
import { type LogEvent, type LogEventData, Spid } from "../../domain/log-event.ts";
import { OUTPUT_STREAMS, type OutputStream } from "../../domain/output.ts";
import type { TerminalSize } from "../../domain/spawn.ts";
import type { OutputVisitor } from "../../storage/events/scan.ts";
import type { InstanceProcess } from "../../supervisor/instance/instance-process.ts";
import type { Tap } from "../../supervisor/instance/process-taps.ts";
import { type EventStream, openEvents } from "../events.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import {
  dataOf,
  endsProcesses,
  type LiveTarget,
  liveTarget,
  noSuchProcess,
  type ProcessName,
  resizeTerminal,
  type StoredTarget,
  storedTarget,
  type Target,
} from "./running.ts";

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
  /** number of bytes of the stream that were not logged or are gone, or for which a lossless client was too slow */
  | { readonly kind: "dropped"; readonly stream: OutputStream; readonly bytes: number }
  /** `dropped` events before the event `first` are gone, perhaps with output of the process */
  | ({ readonly kind: "gap" } & LogEventData["dropped"])
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
  const isSandbox = typeof id !== "string";
  const left = new AbortController();
  using stack = new DisposableStack();
  stack.defer(() => left.abort());
  const live = await liveOrNull(parts, principal, id, left.signal);
  if (live !== null) stack.use(live);
  const isCommand = spid === Spid.command;
  const isLive = live !== null && live.instance.process(spid) !== null && !(isSandbox && isCommand);
  const mayStart = !isSandbox && isCommand && !stored.log.hasEnded;
  if (!isLive && !mayStart && !(await wasStarted(parts, principal, stored, spid))) throw noSuchProcess(spid);
  // Read all events of an ended process: its end may come before `since`. A lossless client needs all of them to count.
  const from = isLive && !lossless ? since : -1;
  const instance = live?.id ?? (isSandbox ? null : id);
  const cut = () => (instance === null ? 0 : (parts.instances.eventsOf(instance)?.cut() ?? 0));
  const starts = stack.use(new Starts(lossless ? cut : null));
  if (instance !== null) stack.use(parts.instances.follow(instance, spid, (process) => starts.add(process)));
  starts.requireTap();
  const until = () => starts.firstId;
  const request = { spid, since: from, follow: true, until, withStates: true, signal: left.signal };
  const events = stack.use(openEvents(parts, principal, stored.log, request));
  const keptAfter = (id: number) => keptOutput(parts, principal, stored, { spid, id, starts, signal: left.signal });
  // The log of a sandbox has the states of earlier machines, too.
  const aliveAt = isLive ? (parts.instances.eventsOf(live.id)?.nextId ?? 0) : 0;
  const held = stack.move();
  return {
    items: () => {
      const log = { events, since, hasBegun: isLive, aliveAt };
      return lossless ? withTap({ ...log, keptAfter }, starts) : fromLog(log);
    },
    write: async (bytes, signal) => await (await starts.latest()).input.write(bytes, signal),
    closeInput: async (signal) => await (await starts.latest()).input.close(signal),
    resize: async (size) => resizeTerminal(await starts.latest(), size),
    [Symbol.dispose]: () => held.dispose(),
  };
}

/** A process and the tap of one client. */
interface Tapped extends TappedProcess {
  /** id of the first event after the tap was opened */
  readonly firstId: number;
}

export interface TappedProcess {
  readonly process: InstanceProcess;
  readonly tap: Tap;
}

/** The starts of one process, which is started again when its machine is replaced. */
class Starts implements Disposable {
  readonly #cut: (() => number) | null;
  readonly #first = Promise.withResolvers<void>();
  #latest: InstanceProcess | null = null;
  /** the start that a lossless reader has not taken yet */
  #next: Tapped | null = null;
  readonly #taps = new DisposableStack();
  #failure: { readonly error: unknown } | null = null;

  /** @param cut the log's function of that name; null: the reader needs no tap */
  constructor(cut: (() => number) | null) {
    this.#cut = cut;
  }

  /** Never throws: the failure of a reader must not affect the start of the process. */
  add(process: InstanceProcess): void {
    this.#latest = process;
    this.#first.resolve();
    if (this.#cut === null) return;
    try {
      this.#next = { process, tap: this.#taps.use(process.taps.open()), firstId: this.#cut() };
    } catch (error) {
      // `take` and `requireTap` throw it.
      this.#failure = { error };
    }
  }

  /** The process of the latest start; pending before the first start, and for ever without one. */
  async latest(): Promise<InstanceProcess> {
    await this.#first.promise;
    if (this.#latest === null) throw new Error("a start without a process");
    return this.#latest;
  }

  /** Id of the first event that the tap of the next start replaces; infinite before that start. */
  get firstId(): number {
    return this.#failure === null ? (this.#next?.firstId ?? Number.POSITIVE_INFINITY) : 0;
  }

  /** Sizes of the output that was logged before the tap of the next start. */
  get logged(): StreamSizes {
    const { stdout, stderr } = this.#next?.tap.before ?? NO_OUTPUT;
    return { stdout: stdout.kept, stderr: stderr.kept };
  }

  /** Takes the next start; null when there is none yet. @throws ApiError `too_many_requests` when a tap was refused */
  take(): Tapped | null {
    this.requireTap();
    const next = this.#next;
    this.#next = null;
    return next;
  }

  /** @throws ApiError `too_many_requests` when a running process has refused a tap */
  requireTap(): void {
    if (this.#failure !== null) throw this.#failure.error;
  }

  [Symbol.dispose](): void {
    this.#taps.dispose();
  }
}

/** The machine of a target that runs now; null when there is none. */
async function liveOrNull(
  parts: ServiceParts,
  principal: Principal,
  id: Target,
  signal: AbortSignal,
): Promise<LiveTarget | null> {
  try {
    return await liveTarget(parts, principal, id, { signal, resumes: false });
  } catch (error) {
    if (error instanceof ApiError && error.code === "conflict") return null;
    throw error;
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
  using events = openEvents(parts, principal, log, { spid, since: -1, follow: false, signal });
  for (let piece = await events.next(); piece !== null; piece = await events.next()) {
    const first = piece.find(({ type }) => type !== "dropped");
    if (first !== undefined) return first.type === "spawn";
  }
  return false;
}

interface LogOfProcess {
  readonly events: EventStream;
  readonly since: number;
  /** the process was started before the event that is read next */
  hasBegun: boolean;
  /** id of an event before which the process has not ended */
  readonly aliveAt: number;
}

/** Delivers the logged events of a process, including future ones. */
async function* fromLog(log: LogOfProcess): AsyncGenerator<Attached, void, undefined> {
  const { events, since } = log;
  for (let piece = await events.next(); piece !== null; piece = await events.next()) {
    for (const event of piece) {
      const item = itemOf(event, log);
      if (item !== null) yield item;
      if (item?.kind === "end") return;
    }
    const last = piece.at(-1)?.id ?? -1;
    if (last > since) yield { kind: "position", id: last };
  }
  yield LOST;
}

interface LogBeforeTap extends LogOfProcess {
  /** Returns the sizes of the output that the log has between the event `id` and the opening of the tap. */
  readonly keptAfter: (id: number) => Promise<StreamSizes>;
}

type StreamSizes = Record<OutputStream, number>;

interface KeptSearch {
  readonly spid: number;
  readonly id: number;
  readonly starts: Starts;
  readonly signal: AbortSignal;
}

/**
 * The sizes of the output of a process that the log has between the event `id` and the opening of the tap. The log may drop
 * some of it before a reader gets there, but a reader that has read up to `id` gets no more.
 */
async function keptOutput(
  { accounts, eventLogs }: ServiceParts,
  { accountId }: Principal,
  { log }: StoredTarget,
  { spid, id, starts, signal }: KeptSearch,
): Promise<StreamSizes> {
  using _search = await accounts.wait(accountId, "logSearches", { signal });
  const kept = { stdout: 0, stderr: 0 };
  const onOutput: OutputVisitor = (ofSpid, stream, bytes, ofId) => {
    if (ofSpid === spid && ofId > id && ofId < starts.firstId) kept[stream] += bytes;
  };
  await eventLogs.written(log.id);
  const search = { first: id + 1, hasEnded: log.hasEnded, onOutput };
  for await (const _ of eventLogs.scan(log.id, search)) signal.throwIfAborted();
  return kept;
}

/** Delivers the events that were logged before the tap was opened, and then all output of the tap. */
async function* withTap(log: LogBeforeTap, starts: Starts): AsyncGenerator<Attached, void, undefined> {
  const { events, since } = log;
  const counted = { stdout: 0, stderr: 0 };
  for (;;) {
    // A start is announced before its first event is logged, so no event can overtake it.
    for (let piece = await events.next(); piece !== null; piece = await events.next()) {
      for (const event of piece) {
        if (event.type === "dropped") {
          const missing = missingBytes(starts.logged, await keptWith(piece, log), counted);
          if (event.id > since) yield* missing;
          continue;
        }
        if (event.type === "stdout" || event.type === "stderr") counted[event.type] += event.payload.byteLength;
        const item = itemOf(event, log);
        if (item !== null) yield item;
        if (item?.kind === "end") return;
      }
    }
    const { logged } = starts;
    const started = starts.take();
    if (started === null) break;
    // Events that the log drops right before the tap are followed by none that is read.
    const missing = missingBytes(logged, NOTHING, counted);
    if (started.firstId - 1 > since) yield* missing;
    if (yield* fromTap(started)) return;
    // The machine was lost before the command began. Another machine may replace it.
  }
  yield LOST;
}

/** The sizes of the output before the tap that the reader of a piece of events still gets, unless the log drops more. */
async function keptWith(piece: readonly LogEvent[], { keptAfter }: LogBeforeTap): Promise<StreamSizes> {
  const kept = await keptAfter(piece.at(-1)?.id ?? -1);
  for (const { type, payload } of piece) {
    if (type === "stdout" || type === "stderr") kept[type] += payload.byteLength;
  }
  return kept;
}

/**
 * Counts the output that is gone: all that was logged before the tap was delivered, is gone, or still to come.
 * @param kept sizes of the output that is still to come
 * @param counted sizes of the output that was delivered, or counted before
 */
function missingBytes(logged: StreamSizes, kept: StreamSizes, counted: StreamSizes): Attached[] {
  return OUTPUT_STREAMS.flatMap((stream) => {
    const bytes = logged[stream] - kept[stream] - counted[stream];
    counted[stream] += bytes;
    return bytes > 0 ? [{ kind: "dropped", stream, bytes }] : [];
  });
}

/** Delivers the output of a tap and the end of its process. Returns false when the process never ran. */
export async function* fromTap({ process: tapped, tap }: TappedProcess): AsyncGenerator<Attached, boolean, undefined> {
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

const NOTHING: StreamSizes = { stdout: 0, stderr: 0 };
const NO_OUTPUT = { stdout: { kept: 0, dropped: 0 }, stderr: { kept: 0, dropped: 0 } };
export const LOST: Attached = { kind: "end", exit: null };

/** The item for an event; null for output that the client has seen, and for events of other types. */
function itemOf(event: LogEvent, log: LogOfProcess): Attached | null {
  const { since, aliveAt } = log;
  log.hasBegun ||= event.spid !== null;
  switch (event.type) {
    case "state":
      return log.hasBegun && event.id >= aliveAt && endsProcesses(event) ? LOST : null;
    case "stdout":
    case "stderr":
      return event.id > since ? { kind: "output", stream: event.type, bytes: event.payload } : null;
    case "truncated": {
      if (event.id <= since) return null;
      const { stream, bytes_dropped } = dataOf<"truncated">(event);
      return { kind: "dropped", stream, bytes: bytes_dropped };
    }
    case "dropped":
      return event.id > since ? { kind: "gap", ...dataOf<"dropped">(event) } : null;
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
