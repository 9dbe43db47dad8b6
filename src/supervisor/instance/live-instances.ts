import { samples } from "../../cgroup/stats.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import { untilAborted } from "../../system/waiting.ts";
import type { RunningInstance } from "./running-instance.ts";

const STATS_INTERVAL_MS = 1000;

/** The run of an operation. It may have several instances, one after another; disposal means that no more will come. */
export interface LiveRun extends Disposable {
  /** Makes `instance` the run's current one until it is disposed; it replaces the instance before. */
  enter(instance: RunningInstance): Disposable;
}

/** Finds the current instance of an operation. A run whose machine is lost before the command began gets another one. */
export class LiveInstances {
  readonly #runs = new Map<OperationId, Run>();

  /** Opens the run of an operation, which must not have one yet. */
  open(id: OperationId): LiveRun {
    const run = new Run(() => this.#runs.delete(id));
    this.#runs.set(id, run);
    return run;
  }

  /** Null when the operation has no machine now. */
  find(id: OperationId): RunningInstance | null {
    return this.#runs.get(id)?.current ?? null;
  }

  /**
   * Samples the instance at once and then every second until it ends or `signal` fires; null when it has no machine yet.
   * The figures start again at zero when the machine is replaced.
   */
  stats(id: OperationId, signal: AbortSignal): AsyncIterable<InstanceStats> | null {
    const run = this.#runs.get(id);
    const first = run?.latest ?? null;
    return run === undefined || first === null ? null : samplesOf(run, first, signal);
  }
}

async function* samplesOf(run: Run, first: RunningInstance, signal: AbortSignal): AsyncGenerator<InstanceStats> {
  for (let instance: RunningInstance | null = first; instance !== null; instance = await run.after(instance, signal)) {
    yield* samples(instance, STATS_INTERVAL_MS, signal);
  }
}

class Run implements LiveRun {
  current: RunningInstance | null = null;
  /** the last one that entered; it stays after that has been disposed */
  latest: RunningInstance | null = null;
  readonly #onOver: () => void;
  #isOver = false;
  /** resolves when another instance enters, or none can any more */
  #changed = Promise.withResolvers<void>();

  constructor(onOver: () => void) {
    this.#onOver = onOver;
  }

  enter(instance: RunningInstance): Disposable {
    this.current = instance;
    this.latest = instance;
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
    return {
      [Symbol.dispose]: () => {
        if (this.current === instance) this.current = null;
      },
    };
  }

  /** Waits for the instance that replaces one whose machine is gone; null when none does, or `signal` fires. */
  async after(instance: RunningInstance, signal: AbortSignal): Promise<RunningInstance | null> {
    // A machine is replaced only when the command had not begun.
    if (instance.hasBegun || signal.aborted) return null;
    if (this.latest === instance && !this.#isOver) {
      // The rejection only says that `signal` fired.
      await untilAborted(this.#changed.promise, signal).catch(() => undefined);
    }
    return this.latest === instance || signal.aborted ? null : this.latest;
  }

  [Symbol.dispose](): void {
    this.#isOver = true;
    this.#changed.resolve();
    this.#onOver();
  }
}
