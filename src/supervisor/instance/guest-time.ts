import { ApiError } from "../../domain/errors.ts";
import { withinTime } from "../../system/waiting.ts";

/** A wait is looked at again no sooner, in `milliseconds`: a guest earns time in small pieces. */
const LOOK_MS_MIN = 250;

export interface GuestTimeOptions {
  /**
   * What the waits may come to by now, in `milliseconds`; it may grow while the guest does what it was asked for.
   * `movedBytes` is what passed through `stream` and `counting`.
   */
  readonly allowedMs: (movedBytes: number) => number | Promise<number>;
  /** What to throw when a step has used up the rest; default is an ApiError `unavailable` that names the step. */
  readonly late?: (step: string, allowedMs: number) => Error;
}

/**
 * The time for which the host waits for one guest, over several steps: one account that all of them draw on. No step has
 * a clock of its own, so that a guest cannot stretch a wait by answering a little at a time. Only waits count, not
 * what the host does between them. One wait at a time.
 */
export class GuestTime {
  readonly #options: GuestTimeOptions;
  #allowedMs: number | null = null;
  #spentMs = 0;
  #movedBytes = 0;

  constructor(options: GuestTimeOptions) {
    this.#options = options;
  }

  /**
   * Waits for a step. What is late goes on unobserved: the caller ends it by ending the machine.
   * @throws what `late` makes; what `work` throws
   */
  async wait<T>(step: string, work: Promise<T>): Promise<T> {
    const settled = work.then((value) => ({ value }));
    // Nobody may be waiting any more when it fails.
    settled.catch(() => undefined);
    const startedAt = performance.now();
    const spentMs = () => this.#spentMs + (performance.now() - startedAt);
    using _account = {
      [Symbol.dispose]: () => {
        this.#spentMs = spentMs();
      },
    };
    for (;;) {
      if (this.#allowedMs === null || spentMs() >= this.#allowedMs) {
        this.#allowedMs = await this.#options.allowedMs(this.#movedBytes);
        if (spentMs() >= this.#allowedMs) throw this.#late(step, this.#allowedMs);
      }
      const leftMs = this.#allowedMs - spentMs();
      const done = await withinTime(settled, Math.max(leftMs, LOOK_MS_MIN), () => null);
      if (done !== null) return done.value;
    }
  }

  /** Passes on what a guest sends; only the waits for it count. Who stops early must end the machine. */
  async *stream(step: string, source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    const chunks = source[Symbol.asyncIterator]();
    for (;;) {
      const next = await this.wait(step, chunks.next());
      if (next.done === true) return;
      this.#movedBytes += next.value.byteLength;
      yield next.value;
    }
  }

  /** Passes on what a guest is sent, as fast as it takes that. */
  async *counting(source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    for await (const chunk of source) {
      yield chunk;
      this.#movedBytes += chunk.byteLength;
    }
  }

  #late(step: string, allowedMs: number): Error {
    return this.#options.late?.(step, allowedMs) ?? new ApiError("unavailable", lateText(step, allowedMs));
  }
}

/** What a person reads of a wait that was over before its step. */
export function lateText(step: string, allowedMs: number): string {
  return `${step} was not done within the ${Math.round(allowedMs / 1000)} s that it and the steps before it may take`;
}
