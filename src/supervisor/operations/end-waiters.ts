import type { OperationId } from "../../domain/ids.ts";
import type { InstanceStats } from "../../domain/instance.ts";
import { startTimer } from "../../system/waiting.ts";
import type { OperationChanges } from "./changes.ts";

/**
 * Callbacks that run when an operation ends or is postponed to the next start of the service. Disposing of a waiter
 * removes it, so that waiters do not add up when a client polls a long operation.
 */
export class EndWaiters implements Disposable {
  readonly #waiters = new Map<OperationId, Set<() => void>>();
  readonly #subscription: Disposable;

  constructor(changes: OperationChanges) {
    this.#subscription = changes.subscribe(({ type, operation }) => {
      if (type === "ended" || type === "postponed") this.#wake(operation.id);
    });
  }

  /** Number of current waiters, of all operations. */
  get count(): number {
    return [...this.#waiters.values()].reduce((sum, { size }) => sum + size, 0);
  }

  /** Calls `wake` when the operation ends, unless it is disposed before. The operation must not have ended yet. */
  add(id: OperationId, wake: () => void): Disposable {
    const waiters = this.#waiters.get(id) ?? new Set();
    this.#waiters.set(id, waiters);
    // The set compares functions. Each call needs its own wrapper, so that adding one function twice makes two waiters.
    const waiter = () => wake();
    waiters.add(waiter);
    return {
      [Symbol.dispose]: () => {
        if (waiters.delete(waiter) && waiters.size === 0) this.#waiters.delete(id);
      },
    };
  }

  /** Resolves when the operation ends, `timeoutMs` passes or `signal` fires. The operation must not have ended yet. */
  async wait(id: OperationId, timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted) return;
    const { promise: over, resolve } = Promise.withResolvers<void>();
    const stop = () => resolve();
    using _waiter = this.add(id, stop);
    using timer = startTimer(timeoutMs);
    void timer.fired.then(stop);
    signal.addEventListener("abort", stop, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", stop) };
    await over;
  }

  /** Does not wake the waiters: their own timers end their waits. */
  [Symbol.dispose](): void {
    this.#subscription[Symbol.dispose]();
    this.#waiters.clear();
  }

  #wake(id: OperationId): void {
    const waiters = this.#waiters.get(id);
    this.#waiters.delete(id);
    for (const wake of [...(waiters ?? [])]) wake();
  }
}

interface SampledUntilEnd {
  readonly samples: AsyncIterable<InstanceStats>;
  /** ends the samples */
  readonly over: AbortController;
  readonly signal: AbortSignal;
}

/** Passes `samples` on until the operation ends or `signal` fires. */
export async function* untilEnd(
  waiters: EndWaiters,
  active: { readonly id: OperationId; readonly ended: boolean },
  { samples, over, signal }: SampledUntilEnd,
): AsyncGenerator<InstanceStats> {
  if (active.ended || signal.aborted) return;
  const stop = () => over.abort();
  using _waiter = waiters.add(active.id, stop);
  signal.addEventListener("abort", stop, { once: true });
  using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", stop) };
  yield* samples;
}
