import { ApiError, storageFull } from "../../domain/errors.ts";
import type { Isolation } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import { retryPauseMs, sleepUnlessAborted } from "../../system/waiting.ts";
import type { Pool, PooledMachine } from "../../vm/pool.ts";
import type { MachineShape } from "../../vm/vmm.ts";
import { type MachineSource, type ReadyMachine, startFailure } from "./machines.ts";
import { Outage } from "./outage.ts";

/** What the probe opened; disposal ends every machine and template. */
export interface Supply extends AsyncDisposable {
  readonly pool: Pool;
  readonly isolation: Isolation;
  /** host path of the launcher */
  readonly launcher: string;
}

/** What is known of machines; an empty reason means that all is well. */
export interface SupplyState {
  /** null until the probe has decided, or when no virtual machine monitor may be used */
  readonly isolation: Isolation | null;
  /** why no machine can run */
  readonly acceleration: string;
  /** why the machines of the pool have nothing to be cloned from */
  readonly template: string;
}

export interface MachineSupplyOptions {
  /**
   * Decides which VMM may be used, which can take seconds, and builds the first template. It throws an ApiError
   * `unavailable` where none may, and is asked again.
   */
  readonly find: (signal: AbortSignal) => Promise<Supply>;
  /** of a machine that is started for nothing but to see whether one can be */
  readonly shape: MachineShape;
  /** how long nothing may have worked before who waits for a machine is refused, in `milliseconds` */
  readonly giveUpMs: number;
  readonly log: Log;
}

const NO_TEMPLATE = "the template that machines are cloned from is not built";
const NOT_YET = "waits for acceleration";
const UNKNOWN = "looking for a way to run virtual machines";
/** Longest pause before a machine that could not be had is asked for again, where others can be. */
const TAKE_PAUSE_MS_MAX = 15_000;

/**
 * Machines from the moment when it is known that there can be any; the daemon listens before that. While none can be
 * had, whoever wants one waits.
 */
export class MachineSupply implements MachineSource, AsyncDisposable {
  readonly #options: MachineSupplyOptions;
  readonly #stopped = new AbortController();
  #opened: Supply | null = null;
  #outage: Outage | null;
  #inUseCount = 0;

  constructor(options: MachineSupplyOptions) {
    this.#options = options;
    this.#outage = this.#begin(async (signal) => {
      this.#opened = await options.find(signal);
      options.log.info("machines can run", { isolation: this.#opened.isolation });
    });
  }

  state(): SupplyState {
    const failure = this.#outage?.failure?.message;
    if (this.#opened === null) return { isolation: null, acceleration: failure ?? UNKNOWN, template: NOT_YET };
    const { isolation, pool } = this.#opened;
    return { isolation, acceleration: failure ?? "", template: pool.hasTemplate ? "" : NO_TEMPLATE };
  }

  /** Machines that exist now. */
  counts(): { readonly waiting: number; readonly ready: number; readonly inUse: number } {
    const pool = this.#opened?.pool;
    return { waiting: pool?.waitingCount ?? 0, ready: pool?.readyCount ?? 0, inUse: this.#inUseCount };
  }

  /** Resolves when machines can run. @throws ApiError `unavailable` when they cannot; the reason of `signal` */
  async known(signal: AbortSignal): Promise<void> {
    await this.#open(signal);
  }

  take(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine> {
    return this.#take((pool) => pool.take(shape, signal), signal);
  }

  takeUnpooled(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine> {
    return this.#take((pool) => pool.takeUnpooled(shape, signal), signal);
  }

  async launcher(signal: AbortSignal): Promise<string> {
    return (await this.#open(signal)).launcher;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort(new ApiError("unavailable", "the service is stopping"));
    await this.#outage?.done;
    await this.#opened?.[Symbol.asyncDispose]();
  }

  #begin(attempt: (signal: AbortSignal) => Promise<void>): Outage {
    const { giveUpMs, log } = this.#options;
    const outage = new Outage({ attempt, giveUpMs, log, signal: this.#stopped.signal });
    void outage.done.then(() => {
      this.#outage = null;
    });
    return outage;
  }

  /** Waits out what keeps every machine from running; what is only suspected keeps nobody. */
  async #open(signal: AbortSignal): Promise<Supply> {
    for (;;) {
      signal.throwIfAborted();
      this.#stopped.signal.throwIfAborted();
      const isSuspected = this.#opened !== null && this.#outage?.failure === null;
      if (this.#opened !== null && (this.#outage === null || isSuspected)) return this.#opened;
      await this.#outage?.over(signal);
    }
  }

  /**
   * Asks for a machine until there is one. After a second failure it is tried whether any can be started: where none
   * can, everybody waits for the end of that; where they can, only who wants this one.
   */
  async #take(take: (pool: Pool) => Promise<PooledMachine>, signal: AbortSignal): Promise<ReadyMachine> {
    let failingSinceMs = Number.POSITIVE_INFINITY;
    for (let failures = 1; ; failures++) {
      const { pool } = await this.#open(signal);
      const startedAtMs = performance.now();
      try {
        return this.#count(await take(pool));
      } catch (error) {
        signal.throwIfAborted();
        this.#stopped.signal.throwIfAborted();
        if (error instanceof ApiError || storageFull(error) !== null) throw error;
        failingSinceMs = Math.min(failingSinceMs, startedAtMs);
        if (performance.now() - failingSinceMs >= this.#options.giveUpMs) throw startFailure(error);
        const pauseMs = retryPauseMs(failures, TAKE_PAUSE_MS_MAX);
        this.#options.log.warn("a machine could not be had", { error, retry_ms: pauseMs });
        if (failures === 1) continue;
        this.#outage ??= this.#begin((stop) => this.#startOne(stop));
        await this.#outage.over(signal);
        await sleepUnlessAborted(pauseMs, signal);
      }
    }
  }

  /** Shows that a machine can be started. @throws what makes that fail */
  async #startOne(signal: AbortSignal): Promise<void> {
    await using _machine = await this.#opened?.pool.takeUnpooled(this.#options.shape, signal);
  }

  #count(taken: ReadyMachine): ReadyMachine {
    this.#inUseCount += 1;
    let isInUse = true;
    return {
      ...taken,
      [Symbol.asyncDispose]: async () => {
        if (isInUse) this.#inUseCount -= 1;
        isInUse = false;
        await taken[Symbol.asyncDispose]();
      },
    };
  }
}
