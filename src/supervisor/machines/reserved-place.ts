import { RoundRobin } from "../../system/round-robin.ts";

/**
 * Room for one machine that is not part of the budget of the runs. What goes on beside a run, and ends before it, takes its
 * machine from here: with the budget full of runs it would wait for one of them to end. Accounts take turns.
 */
export class ReservedPlace {
  readonly #waiting = new RoundRobin<() => void>();
  #isTaken = false;

  /** Waits for the place, which is given back by disposal. @throws the reason of `signal` */
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
      // The place may have been given to it in this very turn: then it is taken.
      if (this.#waiting.delete(accountId, resolve)) reject(signal.reason);
    };
    signal.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    await promise;
  }
}
