import { RoundRobin } from "../../system/round-robin.ts";

/**
 * Room for one machine in addition to the budget, for work that must end before the instance that it serves. When instances use up the
 * budget, such work would otherwise wait for the end of one. Accounts take turns.
 */
export class ReservedPlace {
  readonly #waiting = new RoundRobin<() => void>();
  #isTaken = false;

  /** Waits for the place. Disposal gives it back and is idempotent. @throws the reason of `signal` */
  async take(accountId: string, signal: AbortSignal): Promise<Disposable> {
    signal.throwIfAborted();
    if (this.#isTaken) await this.#turn(accountId, signal);
    this.#isTaken = true;
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (!isHeld) return;
        isHeld = false;
        const next = this.#waiting.take();
        if (next === null) this.#isTaken = false;
        else next();
      },
    };
  }

  async #turn(accountId: string, signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    this.#waiting.add(accountId, resolve);
    const onAbort = () => {
      // When the place has been passed on already, the caller gets it, and gives it back.
      if (this.#waiting.delete(accountId, resolve)) reject(signal.reason);
    };
    signal.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    await promise;
  }
}
