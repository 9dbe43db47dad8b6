import type { Database } from "../../db/database.ts";
import { continuesMemory } from "../../db/requests.ts";
import { memoryImageOf } from "../../db/sandboxes/memory-images.ts";
import { changeState, findSandbox, type SandboxChanges, type SandboxRow } from "../../db/sandboxes/rows.ts";
import type { SandboxId } from "../../domain/ids.ts";
import type { SandboxState, SandboxTransition, StateReason } from "../../domain/sandbox.ts";
import { startTimer, untilAborted } from "../../system/waiting.ts";
import { type SandboxLogFiles, SandboxLogs } from "./sandbox-logs.ts";

/** A change of state that was committed; the state stays the same when the service continues with the sandbox of a former process. */
export interface StateChange {
  readonly row: SandboxRow;
  /** null: the sandbox was created */
  readonly from: SandboxState | null;
  readonly reason: StateReason;
  /** true: its processes continue with the machine, or are kept with the memory; absent: as the database has it */
  readonly memory?: boolean | undefined;
}

export interface JournalOptions {
  readonly db: Database;
  readonly eventLogs: SandboxLogFiles;
  readonly clock: () => number;
}

type Listener = (change: StateChange) => void;

/**
 * Changes the states of sandboxes, and reports each change once, in the order of the changes: to the log of the sandbox, to
 * listeners, and to requests that wait for a state.
 */
export class SandboxJournal implements AsyncDisposable {
  readonly #options: JournalOptions;
  readonly logs: SandboxLogs;
  /** the last reported states of sandboxes that have not ended and changed since the start of the service */
  readonly #reported = new Map<SandboxId, SandboxState>();
  /** changes of transactions that may not have been committed yet */
  readonly #pending = new Map<SandboxId, StateChange>();
  readonly #listeners = new Set<Listener>();

  constructor(options: JournalOptions) {
    this.#options = options;
    this.logs = new SandboxLogs(options.eventLogs);
  }

  /** Calls `listener` synchronously with each change, after it was logged; it must not throw. */
  listen(listener: Listener): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  /** Changes the state in a transaction of its own, and reports it. @throws as `changeState` does */
  change(
    id: SandboxId,
    transition: SandboxTransition,
    { reason, memory, ...changes }: SandboxChanges & Pick<StateChange, "reason" | "memory">,
  ): SandboxRow {
    const { db, clock } = this.#options;
    const { from, row } = db.transaction(() => changeState(db, id, transition, { ...changes, now: clock() }));
    this.report({ from, row, reason, memory });
    return row;
  }

  /** Reports a change of the caller's transaction, which is committed. */
  report(change: StateChange): void {
    this.commit(change.row.id);
    this.#report(change);
  }

  /** Adds to the log what a former process could not write. To be called before any change of the sandbox. */
  complete(row: SandboxRow): void {
    this.logs.complete(row, (state) => this.#hasMemory(row, state));
    if (row.operationId === null && row.state !== "resuming")
      this.logs.close(row.id, { isOver: row.state === "ended" });
  }

  /** Reports the state of a sandbox whose instance a former process has left running, but not to its log: it has not changed. */
  continue(row: SandboxRow): void {
    this.#reported.set(row.id, row.state);
    for (const listener of this.#listeners) listener({ row, from: row.state, reason: "restart" });
  }

  /** Keeps a change of a transaction that is not committed yet, until `commit`, `forget`, or the next change. */
  prepare(change: StateChange): void {
    this.commit(change.row.id);
    this.#pending.set(change.row.id, change);
  }

  /** Reports the prepared change, if there is one. */
  commit(id: SandboxId): void {
    const change = this.#pending.get(id);
    this.#pending.delete(id);
    if (change !== undefined) this.#report(change);
  }

  /** Drops a prepared change whose transaction failed. */
  forget(change: StateChange): void {
    if (this.#pending.get(change.row.id) === change) this.#pending.delete(change.row.id);
  }

  /** Reports the state that the end of an operation has set, if it is another one than before. */
  catchUp(id: SandboxId): void {
    this.commit(id);
    const row = findSandbox(this.#options.db, id);
    const from = this.#reported.get(id);
    if (row === null || from === undefined || row.state === from) return;
    this.#report({ from, row, reason: "machine" });
  }

  /** Resolves when `until` holds of the state, `timeoutMs` passes, or `signal` fires; never throws. */
  async settled(
    id: SandboxId,
    until: (state: SandboxState) => boolean,
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<void> {
    const isSettled = () => until(findSandbox(this.#options.db, id)?.state ?? "ended");
    if (timeoutMs <= 0 || isSettled()) return;
    const { promise, resolve } = Promise.withResolvers<void>();
    using _listener = this.listen(({ row }) => {
      if (row.id === id && isSettled()) resolve();
    });
    using timer = startTimer(timeoutMs);
    // The rejection only says that `signal` fired.
    await untilAborted(Promise.race([promise, timer.fired]), signal).catch(() => undefined);
  }

  /** Closes all logs. Nothing may change afterwards. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.logs[Symbol.asyncDispose]();
  }

  #report(change: StateChange): void {
    const { row, from, reason, memory = this.#hasMemory(row, row.state) } = change;
    const { id, state: to, headId: head, parentId: parent, forkedAtEvent } = row;
    if (from === null && parent !== null && forkedAtEvent !== null) {
      this.logs.append(id, "fork", { parent, at_event: forkedAtEvent });
    }
    this.logs.append(id, "state", { from, to, reason, head, ...(memory === true ? { memory } : {}) });
    if (to === "ended") this.#reported.delete(id);
    else this.#reported.set(id, to);
    if (row.operationId === null && to !== "resuming") this.logs.close(id, { isOver: to === "ended" });
    for (const listener of this.#listeners) listener(change);
  }

  /** True when the processes of a sandbox are kept in a state that it has, or has had a moment ago. */
  #hasMemory({ id, operationId }: SandboxRow, state: SandboxState): boolean {
    const { db } = this.#options;
    if (state === "paused") return memoryImageOf(db, id) !== null;
    return state === "running" && operationId !== null && continuesMemory(db, operationId);
  }
}
