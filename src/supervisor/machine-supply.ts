import { ApiError } from "../domain/errors.ts";
import type { Isolation } from "../domain/operation.ts";
import type { Log } from "../log.ts";
import { sleepUnlessAborted, untilAborted } from "../system/waiting.ts";
import type { Pool } from "../vm/pool.ts";
import type { MachineShape } from "../vm/vmm.ts";
import type { MachineSource, ReadyMachine } from "./machines.ts";

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

const NO_TEMPLATE = "the template that machines are cloned from is not built";
const NOT_YET = "waits for acceleration";
const UNKNOWN = "looking for a way to run virtual machines";
/** Pause before a host that could run no machine is tried again: it may have been busy, or been given what it lacked. */
const RETRY_MS_MIN = 60_000;
/** The pause doubles each time up to this. */
const RETRY_MS_MAX = 3_600_000;

/** Machines from the moment when it is known that there can be any; the daemon listens before that. */
export class MachineSupply implements MachineSource, AsyncDisposable {
  readonly #find: (signal: AbortSignal) => Promise<Supply>;
  readonly #log: Log;
  readonly #stopped = new AbortController();
  /** The last attempt; where it failed another one follows. */
  #supply: Promise<Supply>;
  #retrying: Promise<void> = Promise.resolve();
  #retryMs: number;
  #opened: Supply | null = null;
  #failure = UNKNOWN;
  #inUseCount = 0;

  /**
   * @param find decides which VMM may be used, which can take seconds, and builds the first template.
   * It throws an ApiError `unavailable` where none may, and is asked again later.
   * @param retryMs pause before that
   */
  constructor(find: (signal: AbortSignal) => Promise<Supply>, log: Log, retryMs = RETRY_MS_MIN) {
    this.#find = find;
    this.#log = log;
    this.#retryMs = retryMs;
    this.#supply = this.#attempt();
  }

  #attempt(): Promise<Supply> {
    const supply = this.#find(this.#stopped.signal);
    supply.then(
      (opened) => {
        this.#opened = opened;
        this.#log.info("machines can run", { isolation: opened.isolation });
      },
      (error: unknown) => {
        if (this.#stopped.signal.aborted) return;
        this.#failure = error instanceof ApiError ? error.message : "virtual machines cannot be started";
        this.#log.error("no machine can run", { error, retry_ms: this.#retryMs });
        this.#retrying = this.#retry();
      },
    );
    return supply;
  }

  async #retry(): Promise<void> {
    await sleepUnlessAborted(this.#retryMs, this.#stopped.signal);
    if (this.#stopped.signal.aborted) return;
    this.#retryMs = Math.min(RETRY_MS_MAX, 2 * this.#retryMs);
    // Who asks from now on waits for what this attempt finds.
    this.#supply = this.#attempt();
  }

  state(): SupplyState {
    if (this.#opened === null) return { isolation: null, acceleration: this.#failure, template: NOT_YET };
    const { isolation, pool } = this.#opened;
    return { isolation, acceleration: "", template: pool.hasTemplate ? "" : NO_TEMPLATE };
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

  async take(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine> {
    const { pool } = await this.#open(signal);
    return this.#count(await pool.take(shape, signal));
  }

  async takeAside(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine> {
    const { pool } = await this.#open(signal);
    return this.#count(await pool.takeAside(shape, signal));
  }

  async launcher(signal: AbortSignal): Promise<string> {
    return (await this.#open(signal)).launcher;
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

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort(new ApiError("unavailable", "the service is stopping"));
    await this.#retrying;
    // Where opening failed there is nothing to dispose; the reason has been logged.
    const supply = await this.#supply.catch(() => null);
    await supply?.[Symbol.asyncDispose]();
  }

  async #open(signal: AbortSignal): Promise<Supply> {
    try {
      return await untilAborted(this.#supply, signal);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof ApiError) throw error;
      throw new ApiError("unavailable", this.#failure, {}, { cause: error });
    }
  }
}
