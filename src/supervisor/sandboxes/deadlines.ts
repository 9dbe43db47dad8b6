import type { Database } from "../../db/database.ts";
import { findSandbox, type SandboxRow, updateSandbox } from "../../db/sandboxes/rows.ts";
import { isoTime, type SandboxId } from "../../domain/ids.ts";
import { ENDS_SOON_MS } from "../../domain/sandbox.ts";
import type { Log } from "../../log.ts";
import type { RunningInstances } from "../instance/running-instances.ts";
import type { SandboxJournal } from "./journal.ts";

/** The wall clock can jump, so deadlines are compared with it at least this often, in `milliseconds`. */
const CHECK_MS_MAX = 30_000;
const CHECK_MS_MIN = 50;
/** The time of a use is stored within this part of the idle time, but not more often than each `STORE_MS_MIN`. */
const STORE_RATIO = 0.1;
const STORE_MS_MIN = 1000;
/** Time for the users of a former process to come back before a sandbox counts as idle, in `milliseconds`. */
const RETURN_MS = 10_000;

export interface DeadlinesOptions {
  readonly db: Database;
  readonly clock: () => number;
  readonly log: Log;
  readonly journal: SandboxJournal;
  readonly instances: Pick<RunningInstances, "find">;
  readonly pause: (row: SandboxRow, reason: "idle" | "deadline") => void;
  readonly end: (row: SandboxRow) => void;
  /** time for the users of a former process to come back, in `milliseconds` */
  readonly returnMs?: number | undefined;
}

/** How long a sandbox has not been used. */
interface Usage {
  count: number;
  /** end of the last use, by `performance.now()` */
  lastAtMs: number;
  /** when the time of a use is to be stored, by `performance.now()` */
  storeAtMs: number;
}

/** Pauses or ends running sandboxes at their deadlines, and pauses idle ones. */
export class Deadlines implements Disposable {
  readonly #options: DeadlinesOptions;
  /** of the running sandboxes */
  readonly #usages = new Map<SandboxId, Usage>();
  /** the deadlines that were announced */
  readonly #announced = new Map<SandboxId, number>();
  readonly #listening: Disposable;
  #timer: Timer | null = null;
  /** when the timer fires, by `performance.now()` */
  #checkAtMs = Infinity;
  #isDisposed = false;

  constructor(options: DeadlinesOptions) {
    this.#options = options;
    this.#listening = options.journal.listen(({ row, from }) => {
      const { id, state } = row;
      const isContinued = from === state;
      const lastAtMs = performance.now() - (isContinued ? this.#idleBeforeMs(row) : 0);
      if (state === "running") this.#usages.set(id, { count: 0, lastAtMs, storeAtMs: Infinity });
      else if (state !== "starting") this.#forget(id);
      this.wake();
    });
  }

  /** Counts a use of a running sandbox until disposal. */
  use(id: SandboxId): Disposable {
    const usage = this.#usages.get(id) ?? { count: 0, lastAtMs: 0, storeAtMs: Infinity };
    usage.count += 1;
    if (performance.now() >= usage.storeAtMs) this.wake();
    let isOver = false;
    return {
      [Symbol.dispose]: () => {
        if (isOver) return;
        isOver = true;
        usage.count -= 1;
        usage.lastAtMs = performance.now();
      },
    };
  }

  /** Checks all sandboxes soon. */
  wake(): void {
    this.#checkIn(0);
  }

  [Symbol.dispose](): void {
    this.#isDisposed = true;
    this.#listening[Symbol.dispose]();
    clearTimeout(this.#timer ?? undefined);
  }

  #forget(id: SandboxId): void {
    this.#usages.delete(id);
    this.#announced.delete(id);
  }

  /** An earlier check stays: changes of many sandboxes must not put it off. */
  #checkIn(ms: number): void {
    const delayMs = Math.max(CHECK_MS_MIN, ms);
    const atMs = performance.now() + delayMs;
    if (this.#isDisposed || atMs >= this.#checkAtMs) return;
    clearTimeout(this.#timer ?? undefined);
    this.#checkAtMs = atMs;
    this.#timer = setTimeout(() => this.#check(), delayMs);
  }

  #check(): void {
    this.#checkAtMs = Infinity;
    const { db, log } = this.#options;
    let nextMs = CHECK_MS_MAX;
    for (const id of [...this.#usages.keys()]) {
      try {
        const row = findSandbox(db, id);
        if (row?.state === "running") nextMs = Math.min(nextMs, this.#checkOne(row));
      } catch (error) {
        log.error("cannot end a sandbox at its deadline", { sandbox: id, error });
      }
    }
    if (this.#usages.size > 0) this.#checkIn(nextMs);
  }

  /** Returns the time until the next check, in `milliseconds`. */
  #checkOne(row: SandboxRow): number {
    const { pause, end } = this.#options;
    const leftMs = (row.endsAt ?? Infinity) - this.#options.clock();
    if (leftMs <= 0) {
      if (row.onTimeout === "end") end(row);
      else pause(row, "deadline");
      return CHECK_MS_MAX;
    }
    const idleMs = this.#idleMs(row);
    const idleLeftMs = row.idleTimeoutMs === null ? Infinity : row.idleTimeoutMs - idleMs;
    if (idleLeftMs <= 0) {
      pause(row, "idle");
      return CHECK_MS_MAX;
    }
    const announceMs = leftMs - ENDS_SOON_MS;
    if (announceMs <= 0) this.#announce(row);
    return Math.min(leftMs, idleLeftMs, announceMs > 0 ? announceMs : Infinity, this.#store(row, idleMs));
  }

  /** How long a sandbox was idle under a former process, in `milliseconds`: its users get time to come back. */
  #idleBeforeMs({ idleTimeoutMs, usedAt, stateAt }: SandboxRow): number {
    const { clock, returnMs = RETURN_MS } = this.#options;
    const idleMs = Math.max(0, clock() - Math.max(usedAt ?? 0, stateAt));
    return Math.min(idleMs, Math.max(0, (idleTimeoutMs ?? 0) - returnMs));
  }

  /** Stores when the sandbox was last used, for the next process. Returns the time until the next store, in `milliseconds`. */
  #store({ id, idleTimeoutMs, usedAt, stateAt }: SandboxRow, idleMs: number): number {
    const usage = this.#usages.get(id);
    if (usage === undefined) return Infinity;
    const { db, clock } = this.#options;
    const everyMs = idleTimeoutMs === null ? Infinity : Math.max(STORE_MS_MIN, STORE_RATIO * idleTimeoutMs);
    const lastAt = Math.round(clock() - idleMs);
    const unstoredMs = lastAt - Math.max(usedAt ?? 0, stateAt);
    const isDue = unstoredMs >= everyMs;
    // A power failure ends the machine, too.
    if (isDue) db.withoutSync(() => updateSandbox(db, id, { usedAt: lastAt }));
    const leftMs = isDue ? everyMs : everyMs - unstoredMs;
    usage.storeAtMs = performance.now() + leftMs;
    // One that is not used needs no further store.
    return isDue || usage.count > 0 ? leftMs : Infinity;
  }

  #announce({ id, endsAt }: SandboxRow): void {
    if (endsAt === null || this.#announced.get(id) === endsAt) return;
    this.#announced.set(id, endsAt);
    this.#options.journal.logs.append(id, "ends_soon", { ends_at: isoTime(endsAt) });
  }

  /** How long the sandbox has been idle, in `milliseconds`; readers of a process use it, too. */
  #idleMs({ id, operationId }: SandboxRow): number {
    const usage = this.#usages.get(id);
    const instance = operationId === null ? null : this.#options.instances.find(operationId);
    const isRead = instance?.processes.some(({ taps }) => taps.count > 0) === true;
    if (usage === undefined || usage.count > 0) return 0;
    if (isRead) usage.lastAtMs = performance.now();
    return performance.now() - usage.lastAtMs;
  }
}
