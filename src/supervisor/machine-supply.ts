import { ApiError } from "../domain/errors.ts";
import type { Isolation } from "../domain/operation.ts";
import type { Log } from "../log.ts";
import type { Pool } from "../vm/pool.ts";
import type { MachineShape } from "../vm/vmm.ts";
import { untilAborted } from "./deadline.ts";
import type { MachineSource, ReadyMachine } from "./machines.ts";

/** What the probe opened; disposal ends every machine and template. */
export interface Supply extends AsyncDisposable {
  readonly pool: Pool;
  readonly isolation: Isolation;
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

/** Machines from the moment when it is known that there can be any; the daemon listens before that. */
export class MachineSupply implements MachineSource, AsyncDisposable {
  readonly #supply: Promise<Supply>;
  readonly #stopped = new AbortController();
  #opened: Supply | null = null;
  #failure = UNKNOWN;
  #inUseCount = 0;

  /**
   * @param open decides which VMM may be used, which can take seconds, and builds the first template.
   * It throws an ApiError `unavailable` where none may.
   */
  constructor(open: (signal: AbortSignal) => Promise<Supply>, log: Log) {
    this.#supply = open(this.#stopped.signal);
    this.#supply.then(
      (supply) => {
        this.#opened = supply;
        log.info("machines can run", { isolation: supply.isolation });
      },
      (error: unknown) => {
        if (this.#stopped.signal.aborted) return;
        this.#failure = error instanceof ApiError ? error.message : "virtual machines cannot be started";
        log.error("no machine can run", { error });
      },
    );
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
