import type { SandboxRow } from "../../db/sandboxes/rows.ts";
import type { SandboxId } from "../../domain/ids.ts";
import type { DataEventType, LogEventData } from "../../domain/log-event.ts";
import { type SandboxState, sandboxWay } from "../../domain/sandbox.ts";
import type { EventLog, EventLogs, RingLog } from "../../storage/events/event-logs.ts";

/** The file operations of the logs. */
export type SandboxLogFiles = Pick<EventLogs, "openRing" | "endReaders" | "scan">;

type Write = (log: EventLog) => void;

/** The log of a sandbox that is being opened, or is open. */
interface OpenLog {
  /** null: it is being opened */
  log: (EventLog & Disposable) | null;
  /** events that wait for that */
  readonly waiting: Write[];
  opened: Promise<void>;
}

/** The logs of sandboxes over all their instances. A log is open while its sandbox has an instance. */
export class SandboxLogs implements AsyncDisposable {
  readonly #eventLogs: SandboxLogFiles;
  readonly #open = new Map<SandboxId, OpenLog>();
  readonly #closing = new Map<SandboxId, Promise<void>>();

  constructor(eventLogs: SandboxLogFiles) {
    this.#eventLogs = eventLogs;
  }

  /** Appends an event after all earlier ones. */
  append<Type extends DataEventType>(id: SandboxId, type: Type, data: LogEventData[Type]): void {
    const { log, waiting } = this.#use(id);
    const write: Write = (opened) => opened.append(null, type, data);
    if (log === null) waiting.push(write);
    else write(log);
  }

  /**
   * Appends the changes that lead to the present state and are not in the log, because a former process was killed before it
   * wrote them. To be called before any other event of the sandbox.
   * @param hasMemory whether the processes were kept in that state
   */
  complete(
    { id, state, headId: head }: Pick<SandboxRow, "id" | "state" | "headId">,
    hasMemory: (state: SandboxState) => boolean,
  ): void {
    this.#use(id, async (log) => {
      const last = await this.#lastState(id);
      // The first events of a ring are dropped.
      if (last === null && log.nextId > 0) return;
      const way = last === null ? (["starting", ...sandboxWay("starting", state)] as const) : sandboxWay(last, state);
      for (const [index, to] of way.entries()) {
        const memory = hasMemory(to) ? ({ memory: true } as const) : {};
        log.append(null, "state", { from: way[index - 1] ?? last, to, reason: "restart", head, ...memory });
      }
    });
  }

  /** Resolves when readers can read all events of the sandbox so far, also after a crash of the service; null: they can. */
  written(id: SandboxId): Promise<void> | null {
    const entry = this.#open.get(id);
    return entry === undefined ? (this.#closing.get(id) ?? null) : this.#written(entry);
  }

  /** Another opening of the log, which has all earlier events of the sandbox, for the processes of an instance. */
  async instanceLog(id: SandboxId): Promise<RingLog> {
    await this.#use(id).opened;
    return await this.#eventLogs.openRing(id);
  }

  /** Closes the log until the next event. */
  close(id: SandboxId, { isOver }: { readonly isOver: boolean }): void {
    const entry = this.#open.get(id);
    if (entry === undefined) return;
    this.#open.delete(id);
    const closed = this.#close(entry).then(() => {
      if (isOver) this.#eventLogs.endReaders(id);
      if (this.#closing.get(id) === closed) this.#closing.delete(id);
    });
    this.#closing.set(id, closed);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const id of [...this.#open.keys()]) this.close(id, { isOver: false });
    await Promise.all(this.#closing.values());
  }

  /** @param first appends events when the log is opened */
  #use(id: SandboxId, first?: (log: EventLog) => Promise<void>): OpenLog {
    const existing = this.#open.get(id);
    if (existing !== undefined) return existing;
    const entry: OpenLog = { log: null, waiting: [], opened: Promise.resolve() };
    entry.opened = this.#begin(id, entry, first);
    this.#open.set(id, entry);
    return entry;
  }

  /** Never throws: the events of a log that cannot be opened are lost, and instances cannot start with it. */
  async #begin(id: SandboxId, entry: OpenLog, first?: (log: EventLog) => Promise<void>): Promise<void> {
    await this.#closing.get(id);
    // Expected: a full disk. The instance reports it.
    const log = await this.#eventLogs.openRing(id).catch(() => null);
    if (log !== null) await first?.(log).catch(() => undefined);
    entry.log = log;
    for (const write of entry.waiting.splice(0)) if (entry.log !== null) write(entry.log);
  }

  /** The last state that the log has; null when it has none. */
  async #lastState(id: SandboxId): Promise<SandboxState | null> {
    let last: SandboxState | null = null;
    const scan = this.#eventLogs.scan(id, { first: 0, hasEnded: false, onOutput: () => undefined });
    for await (const events of scan) {
      for (const { type, payload } of events) {
        if (type === "state") last = (JSON.parse(Buffer.from(payload).toString("utf8")) as LogEventData["state"]).to;
      }
    }
    return last;
  }

  async #written(entry: OpenLog): Promise<void> {
    await entry.opened;
    await entry.log?.written();
  }

  async #close(entry: OpenLog): Promise<void> {
    await entry.opened;
    // Expected: a full disk, which has failed the instance.
    await entry.log?.end().catch(() => undefined);
    entry.log?.[Symbol.dispose]();
  }
}
