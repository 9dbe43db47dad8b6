import type { ImageId } from "../../domain/ids.ts";
import type { BranchImage, BranchOperation } from "./branches.ts";

/** Largest number of changes that wait for a client. A client that misses some reads everything again. */
const WAITING_COUNT_MAX = 1000;

export type Change =
  | { readonly type: "operation"; readonly operation: BranchOperation }
  | { readonly type: "image"; readonly image: BranchImage }
  | { readonly type: "deleted"; readonly id: ImageId }
  /** changes may have been left out: the client's data is outdated */
  | { readonly type: "resync" };

export const RESYNC: readonly Change[] = [{ type: "resync" }];

/** The changes of an account for one client. The first one is a `resync`: from then on, none is missing. */
export interface ChangeStream extends Disposable {
  /**
   * The next changes; null at the end. Clients of one account get the same array. It is a promise when it must wait.
   * @throws the reason of the stream's signal
   */
  next(): readonly Change[] | null | Promise<readonly Change[] | null>;
}

/** The changes of one client that wait to be sent. */
export class WaitingChanges implements ChangeStream {
  readonly #signal: AbortSignal;
  readonly #onLeave: () => void;
  #waiting: (readonly Change[])[] = [RESYNC];
  #count = 1;
  #isStopped = false;
  #wake: (() => void) | null = null;

  constructor(signal: AbortSignal, onLeave: () => void) {
    this.#signal = signal;
    this.#onLeave = onLeave;
  }

  push(changes: readonly Change[]): void {
    this.#count += changes.length;
    if (changes === RESYNC || this.#count > WAITING_COUNT_MAX) {
      this.#waiting = [RESYNC];
      this.#count = 1;
    } else this.#waiting.push(changes);
    this.#wake?.();
  }

  stop(): void {
    this.#isStopped = true;
    this.#wake?.();
  }

  next(): readonly Change[] | null | Promise<readonly Change[] | null> {
    this.#signal.throwIfAborted();
    const next = this.#waiting.shift();
    if (next === undefined) return this.#isStopped ? null : this.#wait();
    this.#count -= next.length;
    return next;
  }

  async #wait(): Promise<readonly Change[] | null> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const wake = () => resolve();
    this.#wake = wake;
    this.#signal.addEventListener("abort", wake, { once: true });
    await promise;
    this.#signal.removeEventListener("abort", wake);
    this.#wake = null;
    return this.next();
  }

  [Symbol.dispose](): void {
    this.#onLeave();
  }
}
