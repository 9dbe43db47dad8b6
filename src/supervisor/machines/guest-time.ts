import { ApiError } from "../../domain/errors.ts";
import { withinTime } from "../../system/waiting.ts";

/** Shortest interval between two evaluations of the budget, in `milliseconds`: a guest may earn time in small pieces. */
const LOOK_MS_MIN = 250;

export interface GuestTimeOptions {
  /**
   * Total time that the waits may take, in `milliseconds`. It may grow while the guest makes progress.
   * `movedBytes` is the number of bytes that passed through `stream` and `counting`.
   */
  readonly allowedMs: (movedBytes: number) => number | Promise<number>;
  /** Makes the error for a step that exceeds the budget; the default is an ApiError `unavailable` that names the step. */
  readonly late?: (step: string, allowedMs: number) => Error;
}

/**
 * A time budget that several steps of work in one guest share. A step has no clock of its own, so a guest cannot stretch
 * a wait by answering a little at a time. Only the waits count, not the host's work between them. There must be only one
 * wait at a time.
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
   * Waits for a step. A late step is not stopped: the caller must kill the machine.
   * @throws the error of `late`; the error of `work`
   */
  async wait<T>(step: string, work: Promise<T>): Promise<T> {
    const settled = work.then((value) => ({ value }));
    // It may fail after this wait has given up.
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

  /** Passes on the chunks that a guest sends. A caller that stops early must kill the machine. */
  async *stream(step: string, source: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
    const chunks = source[Symbol.asyncIterator]();
    for (;;) {
      const next = await this.wait(step, chunks.next());
      if (next.done === true) return;
      this.#movedBytes += next.value.byteLength;
      yield next.value;
    }
  }

  /** Passes on the chunks that a guest is sent, and counts each once the guest has taken it. */
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

/** The message for a step that exceeded the budget. */
export function lateText(step: string, allowedMs: number): string {
  return `${step} did not finish within the ${Math.round(allowedMs / 1000)} s allowed for it and the steps before it`;
}
