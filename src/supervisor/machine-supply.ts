import { ApiError } from "../domain/errors.ts";
import type { Isolation } from "../domain/operation.ts";
import type { Log } from "../log.ts";
import type { Pool } from "../vm/pool.ts";
import type { MachineShape } from "../vm/vmm.ts";
import { untilAborted } from "./deadline.ts";
import type { MachineSource, ReadyMachine } from "./machines.ts";
import type { Readiness } from "./ports.ts";

/** What the probe opened; disposal ends every machine and template. */
export interface Supply extends AsyncDisposable {
  readonly pool: Pool;
  readonly isolation: Isolation;
}

/** Machines from the moment when it is known that there can be any; the daemon listens before that. */
export class MachineSupply implements MachineSource, AsyncDisposable {
  readonly #supply: Promise<Supply>;
  readonly #stopped = new AbortController();
  #readiness: Readiness = { ready: false, isolation: null, reason: "looking for a way to run virtual machines" };

  /**
   * @param open decides which VMM may be used, which can take seconds, and builds the first template.
   * It throws an ApiError `unavailable` where none may.
   */
  constructor(open: (signal: AbortSignal) => Promise<Supply>, log: Log) {
    this.#supply = open(this.#stopped.signal);
    this.#supply.then(
      ({ isolation }) => {
        this.#readiness = { ready: true, isolation, reason: "" };
        log.info("machines can run", { isolation });
      },
      (error: unknown) => {
        if (this.#stopped.signal.aborted) return;
        const reason = error instanceof ApiError ? error.message : "virtual machines cannot be started";
        this.#readiness = { ready: false, isolation: null, reason };
        log.error("no machine can run", { error });
      },
    );
  }

  readiness(): Readiness {
    return this.#readiness;
  }

  /** Resolves when machines can run. @throws ApiError `unavailable` when they cannot; the reason of `signal` */
  async known(signal: AbortSignal): Promise<void> {
    await this.#opened(signal);
  }

  async take(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine> {
    const { pool } = await this.#opened(signal);
    return await pool.take(shape, signal);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort(new ApiError("unavailable", "the service is stopping"));
    // Where opening failed there is nothing to dispose; the reason has been logged.
    const supply = await this.#supply.catch(() => null);
    await supply?.[Symbol.asyncDispose]();
  }

  async #opened(signal: AbortSignal): Promise<Supply> {
    try {
      return await untilAborted(this.#supply, signal);
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof ApiError) throw error;
      throw new ApiError("unavailable", this.#readiness.reason, {}, { cause: error });
    }
  }
}
