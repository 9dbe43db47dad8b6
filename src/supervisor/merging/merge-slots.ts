import type { MachineShape } from "../../vm/vmm.ts";
import { costOf, type Scheduler } from "../operations/scheduler.ts";

/** The scheduler's account of urgent merges; no account can have this name. */
const URGENT_ACCOUNT = " merges";
const PREEMPTED = new Error("a longer chain is merged first");

/**
 * Urgency of a merge. An idle merge runs only while no other work wants the host. An urgent one is admitted like the work
 * of an account. A forced one is part of a run, whose chain has more disks than a machine can attach.
 *
 * Each is needed. Idle merges delay no run, but never start on a host that is always busy: there a chain would grow, and each
 * run on it would take longer. Urgent merges prevent that, but they hold memory that a run may wait for, so short chains must not
 * have them. Neither bounds the number of disks, since a merge can fail or wait for memory; a forced merge does.
 */
export type Urgency = "idle" | "urgent" | "forced";

/** Permission for one merge to run. */
export interface MergeSlot extends Disposable {
  /** fires when the merge must stop and dispose of the slot; null: never */
  readonly yield: AbortSignal | null;
}

/** Gives slots to background merges, one at a time. */
export class MergeSlots {
  readonly #scheduler: Scheduler;
  readonly #shape: MachineShape;
  #preempted = new AbortController();

  /** @param options.shape shape of the machines that merge */
  constructor(options: { readonly scheduler: Scheduler; readonly shape: MachineShape }) {
    this.#scheduler = options.scheduler;
    this.#shape = options.shape;
  }

  /**
   * Waits for a slot. An idle merge waits until no other work wants the room; null when `preemptIdle` was called meanwhile.
   * An urgent merge waits its turn for memory, as an account without other work does. It does not count against the CPU
   * budget: its weight limits the processor time that it takes from runs.
   * @throws the reason of `signal`
   */
  async take(urgency: "idle" | "urgent", signal: AbortSignal): Promise<MergeSlot | null> {
    const cost = costOf(this.#shape);
    if (urgency === "urgent") {
      const ticket = await this.#scheduler.admit(URGENT_ACCOUNT, { ...cost, vcpus: 0 }, signal);
      return { yield: null, [Symbol.dispose]: () => ticket[Symbol.dispose]() };
    }
    this.#preempted = new AbortController();
    try {
      return await this.#scheduler.admitIdle(cost, AbortSignal.any([signal, this.#preempted.signal]));
    } catch (error) {
      if (error === PREEMPTED) return null;
      throw error;
    }
  }

  /** Ends the wait of an idle merge, because there is an urgent one. */
  preemptIdle(): void {
    this.#preempted.abort(PREEMPTED);
  }
}

/** The CPU weight of a merge, which only grows. */
export class MergeWeight {
  #cpuWeight: number;
  #setCpuWeight: ((cpuWeight: number) => void) | null = null;

  constructor(cpuWeight: number) {
    this.#cpuWeight = cpuWeight;
  }

  /** Applies the weight to a machine by `setCpuWeight`, now and whenever it grows. */
  applyTo(setCpuWeight: (cpuWeight: number) => void): void {
    this.#setCpuWeight = setCpuWeight;
    setCpuWeight(this.#cpuWeight);
  }

  raise(cpuWeight: number): void {
    if (cpuWeight <= this.#cpuWeight) return;
    this.#cpuWeight = cpuWeight;
    this.#setCpuWeight?.(cpuWeight);
  }
}
