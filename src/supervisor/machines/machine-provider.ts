import { ApiError, storageFull } from "../../domain/errors.ts";
import type { Isolation } from "../../domain/operation.ts";
import type { Log } from "../../log.ts";
import { retryPauseMs, sleepUnlessAborted } from "../../system/waiting.ts";
import { NotResumableError } from "../../vm/machine-end.ts";
import type { Pool, PooledMachine } from "../../vm/pool.ts";
import { templateShape } from "../../vm/templates.ts";
import type { Disk, ForkPoint, MachineShape, Vmm } from "../../vm/vmm.ts";
import { isOwnFailure, startFailure } from "./machine-errors.ts";
import type { ForkedMachines, MachineSource, ReadyMachine } from "./machine-source.ts";
import { Outage } from "./outage.ts";

/** The machines of the VMM that this host uses. Disposal ends every machine and template. */
export interface MachinePlatform extends AsyncDisposable {
  readonly pool: Pool;
  /** the part of the VMM that keeps fork points in directories */
  readonly forks: Pick<Vmm, "name" | "loadFork" | "checkFork" | "compressFork">;
  readonly isolation: Isolation;
  /** host path of the launcher */
  readonly launcher: string;
}

/** Whether machines can run. An empty reason means success. */
export interface MachineState {
  /** null until the probe has decided, or when no virtual machine monitor can be used */
  readonly isolation: Isolation | null;
  /** reason why no machine can run */
  readonly acceleration: string;
  /** reason why the pool has no template to clone */
  readonly template: string;
}

export interface MachineProviderOptions {
  /**
   * Decides which VMM is used, which can take seconds, and builds the first template. It is called again after a failure.
   * @throws ApiError `unavailable` when no VMM can be used
   */
  readonly open: (signal: AbortSignal) => Promise<MachinePlatform>;
  /** shape of a machine that is started only to test whether machines can be started */
  readonly shape: MachineShape;
  /** after this time without any success, in `milliseconds`, callers no longer wait but are refused */
  readonly giveUpMs: number;
  readonly log: Log;
}

const NO_TEMPLATE = "the template that machines are cloned from is not built";
const NOT_YET = "waits for acceleration";
const UNKNOWN = "looking for a way to run virtual machines";
/** Longest pause before the next attempt to take one machine, when other machines can be started. */
const TAKE_PAUSE_MS_MAX = 15_000;
/** Attempts to start a machine of a shape that fails although other machines can be started. */
const SHAPE_ATTEMPTS_COUNT = 3;

/**
 * Provides machines to the rest of the service. The daemon answers requests before it knows whether machines can run, so
 * callers of `take` wait until the platform is open, and while no machine can be started.
 */
export class MachineProvider implements MachineSource, ForkedMachines, AsyncDisposable {
  readonly #options: MachineProviderOptions;
  readonly #stopped = new AbortController();
  #opened: MachinePlatform | null = null;
  #outage: Outage | null;
  #inUseCount = 0;

  constructor(options: MachineProviderOptions) {
    this.#options = options;
    this.#outage = this.#begin(async (signal) => {
      this.#opened = await options.open(signal);
      options.log.info("machines can run", { isolation: this.#opened.isolation });
    });
  }

  state(): MachineState {
    const failure = this.#outage?.failure?.message;
    if (this.#opened === null) return { isolation: null, acceleration: failure ?? UNKNOWN, template: NOT_YET };
    const { isolation, pool } = this.#opened;
    return { isolation, acceleration: failure ?? "", template: pool.hasTemplate ? "" : NO_TEMPLATE };
  }

  /** Number of machines that exist now. `ready`: those waiting that need no more preparation. */
  counts(): { readonly waiting: number; readonly ready: number; readonly inUse: number } {
    const pool = this.#opened?.pool;
    return { waiting: pool?.waitingCount ?? 0, ready: pool?.readyCount ?? 0, inUse: this.#inUseCount };
  }

  /** Resolves when machines can run. @throws ApiError `unavailable` when they cannot; the reason of `signal` */
  async ready(signal: AbortSignal): Promise<void> {
    await this.#open(signal);
  }

  take(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine> {
    return this.#take(shape, (pool) => pool.take(shape, signal), signal);
  }

  takeUnpooled(shape: MachineShape, signal: AbortSignal): Promise<ReadyMachine> {
    return this.#take(shape, (pool) => pool.takeUnpooled(shape, signal), signal);
  }

  async cloneFork(point: ForkPoint, disks: readonly Disk[], signal: AbortSignal): Promise<Omit<ReadyMachine, "agent">> {
    const { pool } = await this.#open(signal);
    try {
      return this.#count(await pool.cloneFork(point, disks, signal));
    } catch (error) {
      signal.throwIfAborted();
      throw storageFull(error) ?? startFailure(error);
    }
  }

  async loadFork(directory: string, signal: AbortSignal): Promise<ForkPoint> {
    const { forks } = await this.#open(signal);
    if (forks.loadFork === undefined) throw new NotResumableError(`${forks.name} cannot continue saved memory`);
    return await forks.loadFork(directory);
  }

  async checkFork(directory: string, signal: AbortSignal): Promise<void> {
    const { forks } = await this.#open(signal);
    if (forks.checkFork === undefined) throw new NotResumableError(`${forks.name} cannot continue saved memory`);
    await forks.checkFork(directory);
  }

  async compressFork(directory: string, signal: AbortSignal): Promise<void> {
    const { forks } = await this.#open(signal);
    await forks.compressFork?.(directory, signal);
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

  /** Waits for the end of an outage. An outage that no attempt has confirmed yet does not count. */
  async #open(signal: AbortSignal): Promise<MachinePlatform> {
    for (;;) {
      signal.throwIfAborted();
      this.#stopped.signal.throwIfAborted();
      const isSuspected = this.#opened !== null && this.#outage?.failure === null;
      if (this.#opened !== null && (this.#outage === null || isSuspected)) return this.#opened;
      await this.#outage?.over(signal);
    }
  }

  /**
   * Retries until it has a machine. After a second failure it tests whether any machine can be started: if none can, that
   * is an outage, and all callers wait for its end; otherwise only this caller waits and retries, and gives up early when
   * the shape seems to be the reason.
   */
  async #take(
    shape: MachineShape,
    take: (pool: Pool) => Promise<PooledMachine>,
    signal: AbortSignal,
  ): Promise<ReadyMachine> {
    const untested = this.#isTested(shape) ? null : shape;
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
        if (performance.now() - failingSinceMs >= this.#options.giveUpMs) throw startFailure(error, untested);
        const pauseMs = retryPauseMs(failures, TAKE_PAUSE_MS_MAX);
        this.#options.log.warn("cannot start a machine", { error, retry_ms: pauseMs });
        if (failures === 1) continue;
        this.#outage ??= this.#begin((stop) => this.#startOne(stop));
        await this.#outage.over(signal);
        // Another machine could be started.
        const isHopeless = untested !== null && failures >= SHAPE_ATTEMPTS_COUNT && isOwnFailure(error);
        if (isHopeless) throw startFailure(error, untested);
        await sleepUnlessAborted(pauseMs, signal);
      }
    }
  }

  /** True for the shape of the machine that `#startOne` starts. */
  #isTested(shape: MachineShape): boolean {
    const { vcpus, memoryBytes } = templateShape(shape);
    return vcpus === this.#options.shape.vcpus && memoryBytes === this.#options.shape.memoryBytes;
  }

  /** Starts a machine and ends it. @throws the reason why no machine can be started */
  async #startOne(signal: AbortSignal): Promise<void> {
    await using _machine = await this.#opened?.pool.takeUnpooled(this.#options.shape, signal);
  }

  #count<One extends AsyncDisposable>(machine: One): One {
    this.#inUseCount += 1;
    let isInUse = true;
    return {
      ...machine,
      [Symbol.asyncDispose]: async () => {
        if (isInUse) this.#inUseCount -= 1;
        isInUse = false;
        await machine[Symbol.asyncDispose]();
      },
    };
  }
}
