import { findSandbox, updateSandbox } from "../../db/sandboxes/rows.ts";
import { ApiError } from "../../domain/errors.ts";
import type { OperationId, SandboxId } from "../../domain/ids.ts";
import { SIGKILL_SIGNAL } from "../../domain/signals.ts";
import type { RingLog } from "../../storage/events/event-logs.ts";
import type { ResumableInstance, RunningInstances } from "../instance/running-instances.ts";
import type { SandboxEnding, SandboxLife, SandboxLives } from "../kinds/sandbox.ts";
import type { OperationRef } from "../operations/changes.ts";
import { type JournalOptions, SandboxJournal } from "./journal.ts";

const END_MS_MAX = 10_000;
/** Numbers of processes that are reserved with one write: after a crash, the next number is behind the reserved ones. */
const RESERVED_COUNT = 64;

export interface LivesOptions extends JournalOptions {
  readonly instances: Pick<RunningInstances, "find" | "isAwaited">;
  /** time for the agent to report that all processes have ended, in `milliseconds` */
  readonly endMsMax?: number;
}

interface LifeOptions extends Required<Pick<LivesOptions, "db" | "instances" | "endMsMax">> {
  readonly journal: SandboxJournal;
}

/** The present instances of sandboxes, and the journal of all. */
export class Lives implements SandboxLives, AsyncDisposable {
  readonly journal: SandboxJournal;
  readonly #options: LifeOptions;
  readonly #lives = new Map<OperationId, Life>();
  /** of instances of a former process that are not there yet */
  readonly #endings = new Map<OperationId, SandboxEnding>();

  constructor({ instances, endMsMax = END_MS_MAX, ...options }: LivesOptions) {
    this.journal = new SandboxJournal(options);
    this.#options = { instances, endMsMax, db: options.db, journal: this.journal };
  }

  async begin({ id: operationId }: OperationRef, id: SandboxId): Promise<SandboxLife> {
    const { db, journal } = this.#options;
    journal.commit(id);
    // An ended sandbox does not close its log again.
    if (findSandbox(db, id)?.operationId !== operationId) throw notNeeded();
    const events = await journal.logs.instanceLog(id);
    const row = findSandbox(db, id);
    if (row?.operationId !== operationId) {
      events[Symbol.dispose]();
      throw notNeeded();
    }
    const life = new Life(this.#options, { id, operationId, events, spidLast: row.spidLast }, () => {
      this.#lives.delete(operationId);
    });
    life.ending = this.#endings.get(operationId) ?? null;
    this.#endings.delete(operationId);
    this.#lives.set(operationId, life);
    return life;
  }

  /** Ends an instance that runs, or that a former process has left running. */
  end(operationId: OperationId, ending: SandboxEnding): void {
    const life = this.#lives.get(operationId);
    life?.end(ending);
    if (life === undefined && this.#options.instances.isAwaited(operationId)) this.#endings.set(operationId, ending);
  }

  /** Closes the logs. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.journal[Symbol.asyncDispose]();
  }
}

interface LifeOf {
  readonly id: SandboxId;
  readonly operationId: OperationId;
  readonly events: RingLog;
  readonly spidLast: number;
}

class Life implements SandboxLife {
  readonly numbers;
  ending: SandboxEnding | null = null;
  readonly #suspension = Promise.withResolvers<ResumableInstance>();
  readonly #options: LifeOptions;
  readonly #of: LifeOf;
  readonly #onOver: () => void;
  readonly #abort = new AbortController();
  #timer: Timer | null = null;
  #spidLast: number;
  #reservedSpid: number;

  constructor(options: LifeOptions, of: LifeOf, onOver: () => void) {
    this.#options = options;
    this.#of = of;
    this.#onOver = onOver;
    this.#spidLast = of.spidLast;
    this.#reservedSpid = of.spidLast;
    this.numbers = { last: of.spidLast, onNumber: (spid: number) => this.#reserve(spid) };
  }

  get events(): RingLog {
    return this.#of.events;
  }

  get abort(): AbortSignal {
    return this.#abort.signal;
  }

  get suspended(): Promise<ResumableInstance> {
    return this.#suspension.promise;
  }

  started(memory = false): void {
    const { db, journal } = this.#options;
    const { id, operationId } = this.#of;
    if (findSandbox(db, id)?.operationId !== operationId) throw notNeeded();
    journal.change(id, "start", { reason: "machine", memory });
  }

  continued(): void {
    const { id, operationId } = this.#of;
    const row = findSandbox(this.#options.db, id);
    if (row?.operationId !== operationId) throw notNeeded();
    if (row.state === "resuming") this.started(true);
    if (this.ending !== null) this.end(this.ending);
  }

  end(ending: SandboxEnding): void {
    this.ending = ending;
    if (ending !== "discard" && ending.memory !== undefined) {
      this.#suspension.resolve(ending.memory.record);
      return;
    }
    if (this.#options.instances.isAwaited(this.#of.operationId)) return;
    this.#timer = setTimeout(() => this.#giveUp(), this.#options.endMsMax);
    try {
      const command = this.#options.instances.find(this.#of.operationId)?.command;
      command?.signal(SIGKILL_SIGNAL);
      // The capture that follows has limits of its own.
      const stop = () => clearTimeout(this.#timer ?? undefined);
      command?.exit.then(stop, stop);
    } catch {
      // Expected: the guest takes no more frames.
      this.#giveUp();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearTimeout(this.#timer ?? undefined);
    this.#onOver();
    if (this.#spidLast !== this.#reservedSpid) this.#store(this.#spidLast);
    const { events } = this.#of;
    // Expected: a full disk, which has failed the instance.
    await events.end().catch(() => undefined);
    events[Symbol.dispose]();
  }

  #giveUp(): void {
    this.#abort.abort(new ApiError("unavailable", "the guest did not end the processes of the sandbox in time"));
  }

  #reserve(spid: number): void {
    this.#spidLast = spid;
    if (spid > this.#reservedSpid) this.#store(spid + RESERVED_COUNT);
  }

  #store(spidLast: number): void {
    const { db } = this.#options;
    // A power failure that undoes it also undoes the latest events with these numbers.
    db.withoutSync(() => updateSandbox(db, this.#of.id, { spidLast }));
    this.#reservedSpid = spidLast;
  }
}

function notNeeded(): ApiError {
  return new ApiError("conflict", "the sandbox no longer needs the instance");
}
