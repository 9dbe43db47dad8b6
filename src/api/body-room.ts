import { ApiError } from "../domain/errors.ts";
import type { AccountId } from "../domain/ids.ts";
import { startTimer } from "../system/waiting.ts";

/** What large bodies may take of the memory, in `bytes`. A body that is larger than a limit is taken alone. */
export interface BodyRoomOptions {
  readonly totalBytes: number;
  /** of one account */
  readonly accountBytes: number;
  /** how long a body waits for room, in `milliseconds` */
  readonly waitMsMax: number;
  /** Frees the memory of what was worked on, as far as nobody holds it any more; blocks the event loop for a moment. */
  readonly collect: () => void;
}

/** The garbage collector of its own accord lets hundreds of MiB of strings gather: it is called for each so many `bytes`. */
const COLLECT_BYTES_MIN = 33_554_432;
/** What is less is collected when no large body has come for this long. */
const COLLECT_IDLE_MS = 1000;

interface Waiting {
  readonly accountId: AccountId;
  readonly bytes: number;
  readonly admit: () => void;
}

/**
 * Room in memory for large bodies, from their first byte until they have been worked on. What waits is not read from its
 * connection, where the kernel holds it back: so neither the number of requests nor their size costs the service more
 * than this. First come first served, but for those whose own account has taken its share.
 */
export class BodyRoom {
  readonly #options: BodyRoomOptions;
  readonly #waiting = new Set<Waiting>();
  readonly #accounts = new Map<AccountId, number>();
  #collection: Timer | undefined;
  #takenBytes = 0;
  #garbageBytes = 0;

  constructor(options: BodyRoomOptions) {
    this.#options = options;
  }

  /**
   * Waits for room for `bytes`; disposal, which is idempotent, gives it back.
   * @throws ApiError `too_many_requests` when there is none for too long; the reason of `signal`
   */
  async take(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    signal.throwIfAborted();
    const { promise: admitted, resolve: admit, reject } = Promise.withResolvers<void>();
    const waiting = { accountId, bytes, admit };
    const refuse = (reason: unknown) => {
      reject(reason);
      // Whoever waited behind it may fit now.
      if (this.#waiting.delete(waiting)) this.#admit();
    };
    const onAbort = () => refuse(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    using timer = startTimer(this.#options.waitMsMax);
    void timer.fired.then(() => refuse(new ApiError("too_many_requests", "too many large bodies are being received")));
    this.#waiting.add(waiting);
    this.#admit();
    await admitted;
    let isTaken = true;
    return {
      [Symbol.dispose]: () => {
        if (!isTaken) return;
        isTaken = false;
        this.#count(accountId, -bytes);
        this.#collectLater(bytes);
        this.#admit();
      },
    };
  }

  #collectLater(bytes: number): void {
    this.#garbageBytes += bytes;
    clearTimeout(this.#collection);
    // Not at once: the answer is still to be given.
    const delayMs = this.#garbageBytes >= COLLECT_BYTES_MIN ? 0 : COLLECT_IDLE_MS;
    this.#collection = setTimeout(() => {
      this.#garbageBytes = 0;
      this.#options.collect();
    }, delayMs);
    this.#collection.unref();
  }

  #admit(): void {
    const { totalBytes, accountBytes } = this.#options;
    for (const waiting of this.#waiting) {
      const { accountId, bytes, admit } = waiting;
      if ((this.#accounts.get(accountId) ?? 0) + bytes > Math.max(accountBytes, bytes)) continue;
      if (this.#takenBytes > 0 && this.#takenBytes + bytes > totalBytes) return;
      this.#waiting.delete(waiting);
      this.#count(accountId, bytes);
      admit();
    }
  }

  #count(accountId: AccountId, bytes: number): void {
    this.#takenBytes += bytes;
    const taken = (this.#accounts.get(accountId) ?? 0) + bytes;
    if (taken === 0) this.#accounts.delete(accountId);
    else this.#accounts.set(accountId, taken);
  }
}
