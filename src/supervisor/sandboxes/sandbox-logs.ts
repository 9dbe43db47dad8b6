import type { SandboxId } from "../../domain/ids.ts";
import type { DataEventType, LogEventData } from "../../domain/log-event.ts";
import type { EventLog, EventLogs } from "../../storage/events/event-logs.ts";

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
  readonly #eventLogs: Pick<EventLogs, "openRing" | "endReaders">;
  readonly #open = new Map<SandboxId, OpenLog>();
  readonly #closing = new Map<SandboxId, Promise<void>>();

  constructor(eventLogs: Pick<EventLogs, "openRing" | "endReaders">) {
    this.#eventLogs = eventLogs;
  }

  /** Appends an event after all earlier ones. */
  append<Type extends DataEventType>(id: SandboxId, type: Type, data: LogEventData[Type]): void {
    const { log, waiting } = this.#use(id);
    const write: Write = (opened) => opened.append(null, type, data);
    if (log === null) waiting.push(write);
    else write(log);
  }

  /** Resolves when readers can read all events of the sandbox so far, also after a crash of the service; null: they can. */
  written(id: SandboxId): Promise<void> | null {
    const entry = this.#open.get(id);
    return entry === undefined ? (this.#closing.get(id) ?? null) : this.#written(entry);
  }

  /** Another opening of the log, which has all earlier events of the sandbox, for the processes of an instance. */
  async instanceLog(id: SandboxId): Promise<EventLog & Disposable> {
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

  #use(id: SandboxId): OpenLog {
    const existing = this.#open.get(id);
    if (existing !== undefined) return existing;
    const entry: OpenLog = { log: null, waiting: [], opened: Promise.resolve() };
    entry.opened = this.#begin(id, entry);
    this.#open.set(id, entry);
    return entry;
  }

  /** Never throws: the events of a log that cannot be opened are lost, and instances cannot start with it. */
  async #begin(id: SandboxId, entry: OpenLog): Promise<void> {
    await this.#closing.get(id);
    // Expected: a full disk. The instance reports it.
    entry.log = await this.#eventLogs.openRing(id).catch(() => null);
    for (const write of entry.waiting.splice(0)) if (entry.log !== null) write(entry.log);
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
