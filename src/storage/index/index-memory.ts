import { ByteBudget } from "../byte-budget.ts";
import { INDEX_MEMORY_EACH_BYTES_MAX, INDEX_MEMORY_SHARED_BYTES_MAX } from "../limits.ts";

/** Memory is taken in pieces of as many `bytes`. */
const PIECE_BYTES = 1_048_576;

/** The memory of one index that is being written; given back at disposal. */
export interface IndexAccount extends Disposable {
  /** Takes memory for as many `bytes` in all; false when there is not as much. */
  covers(bytes: number): boolean;
  /**
   * Waits for the seat, whose holder has memory for the largest index that there can be. Take it only when everything
   * that the index is made of is there: others wait for it.
   * @throws the reason of `signal`
   */
  takeSeat(signal: AbortSignal | null): Promise<void>;
}

/**
 * The memory of all indexes that are being written. A few small ones are written at a time, out of a budget that they
 * share; one that finds nothing left, or is large, keeps its stream on the disk until it gets the one seat for such.
 */
export class IndexMemory {
  readonly #shared: ByteBudget;
  readonly #eachBytesMax: number;
  #isSeatTaken = false;
  /** called when the seat is theirs; in order */
  readonly #waiting = new Set<() => void>();

  constructor(sharedBytesMax = INDEX_MEMORY_SHARED_BYTES_MAX, eachBytesMax = INDEX_MEMORY_EACH_BYTES_MAX) {
    this.#shared = new ByteBudget(sharedBytesMax);
    this.#eachBytesMax = eachBytesMax;
  }

  /** what small indexes have taken, in `bytes` */
  get sharedBytes(): number {
    return this.#shared.taken;
  }

  /** An account that has nothing yet. */
  open(): IndexAccount {
    let taken = 0;
    let hasSeat = false;
    const giveBack = () => {
      this.#shared.give(taken);
      taken = 0;
    };
    return {
      covers: (bytes) => {
        if (hasSeat || bytes <= taken) return true;
        const more = Math.ceil((bytes - taken) / PIECE_BYTES) * PIECE_BYTES;
        if (taken + more > this.#eachBytesMax || !this.#shared.take(more)) return false;
        taken += more;
        return true;
      },
      takeSeat: async (signal) => {
        await this.#waitForSeat(signal);
        hasSeat = true;
        giveBack();
      },
      [Symbol.dispose]: () => {
        giveBack();
        if (hasSeat) this.#leaveSeat();
        hasSeat = false;
      },
    };
  }

  async #waitForSeat(signal: AbortSignal | null): Promise<void> {
    signal?.throwIfAborted();
    if (!this.#isSeatTaken) {
      this.#isSeatTaken = true;
      return;
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const come = () => {
      this.#waiting.delete(come);
      resolve();
    };
    const leave = () => {
      if (this.#waiting.delete(come)) reject(signal?.reason);
    };
    this.#waiting.add(come);
    signal?.addEventListener("abort", leave, { once: true });
    using _listener = { [Symbol.dispose]: () => signal?.removeEventListener("abort", leave) };
    await promise;
  }

  #leaveSeat(): void {
    const [next] = this.#waiting;
    if (next === undefined) this.#isSeatTaken = false;
    else next();
  }
}
