import { ApiError } from "../domain/errors.ts";
import type { AccountId } from "../domain/ids.ts";

export interface WalkLimits {
  /** largest number of concurrent walks of one account */
  readonly countMax: number;
  /** longest wait of a further walk, in `milliseconds` */
  readonly waitMsMax: number;
}

/** A walk through 128 layers holds 2 MiB, and a long reply a few times 64 KiB, for as long as the client reads. */
export const WALK_LIMITS: WalkLimits = { countMax: 32, waitMsMax: 30_000 };

interface Account {
  count: number;
  /** callbacks of the waiting walks, in order; each takes over a place */
  readonly waiting: Set<() => void>;
}

/** Bounds the number of concurrent walks, or other long replies, of each account, and so the memory that they hold. */
export class WalkLimiter {
  readonly #limits: WalkLimits;
  readonly #accounts = new Map<AccountId, Account>();

  constructor(limits: WalkLimits = WALK_LIMITS) {
    this.#limits = limits;
  }

  /**
   * Waits for a place. Disposal gives it back and is idempotent.
   * @throws ApiError `too_many_requests` when the wait is too long; the reason of `signal`
   */
  async take(accountId: AccountId, signal: AbortSignal): Promise<Disposable> {
    const account = this.#accounts.get(accountId) ?? { count: 0, waiting: new Set() };
    this.#accounts.set(accountId, account);
    if (account.count < this.#limits.countMax) account.count++;
    else await this.#wait(account, signal);
    let isTaken = true;
    return {
      [Symbol.dispose]: () => {
        if (!isTaken) return;
        isTaken = false;
        const [next] = account.waiting;
        // The place passes to the next waiting walk, so the count stays.
        if (next !== undefined) next();
        else if (--account.count === 0) this.#accounts.delete(accountId);
      },
    };
  }

  async #wait({ waiting }: Account, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const come = () => {
      waiting.delete(come);
      resolve();
    };
    const leave = (reason: unknown) => {
      // When the place has been passed on already, the caller gets it, and gives it back.
      if (waiting.delete(come)) reject(reason);
    };
    waiting.add(come);
    const { countMax, waitMsMax } = this.#limits;
    const busy = new ApiError("too_many_requests", `${countMax} such requests of this account are under way`);
    const timer = setTimeout(leave, waitMsMax, busy);
    using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
    const onAbort = () => leave(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    await promise;
  }
}
