interface Turn {
  readonly come: () => void;
  readonly fail: (reason: unknown) => void;
}

/** Runs tasks one after another, in the order of the calls. A task that waits for its turn can be cancelled. */
export class RequestQueue {
  readonly #waiting = new Set<Turn>();
  #isBusy = false;
  #closed: Error | null = null;

  /**
   * Resolves when `work` is done.
   * @param signal cancels the task while it waits for its turn; the queue then drops its reference to it
   * @throws what `work` throws; the reason of `signal`; the error given to `close`
   */
  async run(work: () => Promise<void>, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (this.#closed !== null) throw this.#closed;
    if (this.#isBusy) await this.#turn(signal);
    this.#isBusy = true;
    using _turn = { [Symbol.dispose]: () => this.#pass() };
    await work();
  }

  /** Fails the tasks that wait, and all later ones. */
  close(error: Error): void {
    this.#closed = error;
    for (const { fail } of this.#waiting) fail(error);
    this.#waiting.clear();
  }

  async #turn(signal?: AbortSignal): Promise<void> {
    const { promise, resolve: come, reject: fail } = Promise.withResolvers<void>();
    const turn = { come, fail };
    this.#waiting.add(turn);
    const onAbort = () => {
      if (this.#waiting.delete(turn)) fail(signal?.reason);
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal?.removeEventListener("abort", onAbort) };
    await promise;
  }

  #pass(): void {
    const [next] = this.#waiting;
    if (next === undefined) {
      this.#isBusy = false;
      return;
    }
    this.#waiting.delete(next);
    next.come();
  }
}
