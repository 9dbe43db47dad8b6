import { samples } from "../../cgroup/stats.ts";
import type { OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import { untilAborted } from "../../system/waiting.ts";
import type { RunningInstance } from "./running-instance.ts";

const STATS_INTERVAL_MS = 1000;

/** The run of an operation, while instances can come and go for it. Disposal tells that no more come. */
export interface LiveRun extends Disposable {
  /** The instance that the run has now, until disposal; it takes the place of the one before. */
  enter(instance: RunningInstance): Disposable;
}

/** Finds the instance that an operation has now. A run whose machine is lost too early gets another one. */
export class LiveInstances {
  readonly #runs = new Map<OperationId, Run>();

  /** Opens the run of an operation, which must have none. */
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
   * Looks at the instance at once and then every second until it ends, or `signal` fires; null when there was none yet. A
   * machine that takes the place of another begins at zero again.
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
  /** stays when it has left */
  latest: RunningInstance | null = null;
  readonly #onOver: () => void;
  #isOver = false;
  /** resolves when another instance has entered, or none can any more */
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

  /** The instance that takes the place of one whose machine is gone; null when none does, or `signal` fires. */
  async after(instance: RunningInstance, signal: AbortSignal): Promise<RunningInstance | null> {
    // A machine is replaced only where the command had not begun.
    if (instance.hasBegun || signal.aborted) return null;
    if (this.latest === instance && !this.#isOver) {
      // A signal that fires is the end of the wait, no failure.
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
