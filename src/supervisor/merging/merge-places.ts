import type { MachineShape } from "../../vm/vmm.ts";
import { costOf, type Scheduler } from "../operations/scheduler.ts";

/** Urgent merges take their places under this name, which no account can have. */
const URGENT_ACCOUNT = " merges";
const OVERTAKEN = new Error("a longer chain is to be merged first");

/**
 * How much a merge is needed. An idle one runs only while nobody else wants the room. An urgent one has a place of its
 * own, and for a forced one a run waits, because a machine cannot have as many disks.
 */
export type Urgency = "idle" | "urgent" | "forced";

export interface Place extends Disposable {
  /** fires when the place must be given back; null: never */
  readonly yield: AbortSignal | null;
}

/** Where merges that nobody waits for may run; one at a time. */
export class MergePlaces {
  readonly #scheduler: Scheduler;
  readonly #shape: MachineShape;
  #overtaken = new AbortController();

  /** @param options.shape of the machines that merge */
  constructor(options: { readonly scheduler: Scheduler; readonly shape: MachineShape }) {
    this.#scheduler = options.scheduler;
    this.#shape = options.shape;
  }

  /**
   * Waits for a place. For an idle merge that is room that nobody wants; null when it was overtaken meanwhile. An
   * urgent one waits its turn for memory, as an account does that has nothing else. Processors are shared out by
   * weight, so it waits for none of them, and no run waits for those that it uses.
   * @throws the reason of `signal`
   */
  async take(urgency: "idle" | "urgent", signal: AbortSignal): Promise<Place | null> {
    const cost = costOf(this.#shape);
    if (urgency === "urgent") {
      const ticket = await this.#scheduler.admit(URGENT_ACCOUNT, { ...cost, vcpus: 0 }, signal);
      return { yield: null, [Symbol.dispose]: () => ticket[Symbol.dispose]() };
    }
    this.#overtaken = new AbortController();
    try {
      return await this.#scheduler.admitIdle(cost, AbortSignal.any([signal, this.#overtaken.signal]));
    } catch (error) {
      if (error === OVERTAKEN) return null;
      throw error;
    }
  }

  /** Ends the wait of an idle merge: there is an urgent one. */
  overtake(): void {
    this.#overtaken.abort(OVERTAKEN);
  }
}

/** The share of the processors that a merge has; it only grows. */
export class MergeWeight {
  #cpuWeight: number;
  #weigh: ((cpuWeight: number) => void) | null = null;

  constructor(cpuWeight: number) {
    this.#cpuWeight = cpuWeight;
  }

  /** Applies the share to the machine, now and whenever it grows. */
  applyBy(weigh: (cpuWeight: number) => void): void {
    this.#weigh = weigh;
    weigh(this.#cpuWeight);
  }

  raise(cpuWeight: number): void {
    if (cpuWeight <= this.#cpuWeight) return;
    this.#cpuWeight = cpuWeight;
    this.#weigh?.(cpuWeight);
  }
}
