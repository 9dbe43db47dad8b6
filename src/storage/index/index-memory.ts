import { ByteBudget } from "../byte-budget.ts";
import { INDEX_MEMORY_EACH_BYTES_MAX, INDEX_MEMORY_SHARED_BYTES_MAX } from "../limits.ts";

/** Memory is reserved in steps of this size, in `bytes`. */
const PIECE_BYTES = 1_048_576;

/** The memory of one index that is being written; disposal returns it. */
export interface MemoryShare extends Disposable {
  /** Reserves memory up to `bytes` in all. Returns false, and reserves nothing, when not enough is left. */
  reserve(bytes: number): boolean;
  /**
   * Waits for the slot for large indexes, whose holder has memory for the largest possible index. Call it only when the
   * whole stream has been received, because others wait for the slot.
   * @throws the reason of `signal`
   */
  takeLargeSlot(signal: AbortSignal | null): Promise<void>;
}

/**
 * The memory of all indexes that are being written. Small indexes share a budget. An index that is large, or that finds
 * the budget used up, spools its stream to the disk and waits for the one slot for large indexes.
 */
export class IndexMemory {
  readonly #shared: ByteBudget;
  readonly #eachBytesMax: number;
  #isLargeSlotTaken = false;
  /** callbacks that receive the slot, in order */
  readonly #waiting = new Set<() => void>();

  /**
   * @param shared budget of all small indexes
   * @param eachBytesMax the largest part of it for one index, in `bytes`
   */
  constructor(shared = new ByteBudget(INDEX_MEMORY_SHARED_BYTES_MAX), eachBytesMax = INDEX_MEMORY_EACH_BYTES_MAX) {
    this.#shared = shared;
    this.#eachBytesMax = eachBytesMax;
  }

  /** A new share, without any memory reserved. */
  open(): MemoryShare {
    let reservedBytes = 0;
    let hasLargeSlot = false;
    const release = () => {
      this.#shared.give(reservedBytes);
      reservedBytes = 0;
    };
    return {
      reserve: (bytes) => {
        if (hasLargeSlot || bytes <= reservedBytes) return true;
        const more = Math.ceil((bytes - reservedBytes) / PIECE_BYTES) * PIECE_BYTES;
        if (reservedBytes + more > this.#eachBytesMax || !this.#shared.take(more)) return false;
        reservedBytes += more;
        return true;
      },
      takeLargeSlot: async (signal) => {
        await this.#waitForLargeSlot(signal);
        hasLargeSlot = true;
        release();
      },
      [Symbol.dispose]: () => {
        release();
        if (hasLargeSlot) this.#releaseLargeSlot();
        hasLargeSlot = false;
      },
    };
  }

  async #waitForLargeSlot(signal: AbortSignal | null): Promise<void> {
    signal?.throwIfAborted();
    if (!this.#isLargeSlotTaken) {
      this.#isLargeSlotTaken = true;
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

  #releaseLargeSlot(): void {
    const [next] = this.#waiting;
    if (next === undefined) this.#isLargeSlotTaken = false;
    else next();
  }
}
