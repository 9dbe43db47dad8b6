import { ApiError } from "../domain/errors.ts";
import type { AccountId } from "../domain/ids.ts";

export interface WalksLimits {
  /** walks of one account at a time */
  readonly countMax: number;
  /** how long another one waits, in `milliseconds` */
  readonly waitMsMax: number;
}

/** A walk through 128 layers holds 2 MiB, and a client that reads slowly keeps it for long. */
export const WALKS_LIMITS: WalksLimits = { countMax: 32, waitMsMax: 30_000 };

interface Account {
  count: number;
  /** called when a place is theirs; in order */
  readonly waiting: Set<() => void>;
}

/** Bounds how many walks through images go on for one account, so that what they hold is bounded, too. */
export class Walks {
  readonly #limits: WalksLimits;
  readonly #accounts = new Map<AccountId, Account>();

  constructor(limits: WalksLimits = WALKS_LIMITS) {
    this.#limits = limits;
  }

  /**
   * Waits for a place; disposal, which is idempotent, gives it back.
   * @throws ApiError `too_many_requests` when there is none for too long; the reason of `signal`
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
        // The place passes on to who waits.
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
      // A place that has come already is given back by whoever waited for it.
      if (waiting.delete(come)) reject(reason);
    };
    waiting.add(come);
    const { countMax, waitMsMax } = this.#limits;
    const busy = new ApiError("too_many_requests", `${countMax} readers of images of this account are under way`);
    const timer = setTimeout(leave, waitMsMax, busy);
    using _timer = { [Symbol.dispose]: () => clearTimeout(timer) };
    const onAbort = () => leave(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    await promise;
  }
}
