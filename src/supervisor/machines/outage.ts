import type { ApiError } from "../../domain/errors.ts";
import type { Log } from "../../log.ts";
import { retryPauseMs, sleepUnlessAborted, untilAborted } from "../../system/waiting.ts";
import { startFailure } from "./machines.ts";

/** Longest pause between attempts while somebody may wait for their success. */
const PAUSE_MS_MAX = 15_000;
/** The same once that has been given up. */
const GIVEN_UP_PAUSE_MS_MAX = 60_000;

export interface OutageOptions {
  /** Ends the outage when it resolves. It throws an ApiError where a caller may know why not. */
  readonly attempt: (signal: AbortSignal) => Promise<void>;
  /** after so long without success nobody waits any more, in `milliseconds` */
  readonly giveUpMs: number;
  readonly log: Log;
  /** ends the attempts; the reason goes to who waits */
  readonly signal: AbortSignal;
}

/**
 * A time in which no machine can be had. As long as it lasts it is tried whether one can: at once, and then again
 * after pauses that double.
 */
export class Outage {
  /** Resolves when no further attempt is made: the outage is over, or the service stops. Never rejects. */
  readonly done: Promise<void>;
  readonly #options: OutageOptions;
  readonly #giveUpAtMs: number;
  /** What those who ask now wait for. */
  #end = unheard();
  #failure: ApiError | null = null;
  #isGivenUp = false;
  #isAttempting = false;

  constructor(options: OutageOptions) {
    this.#options = options;
    this.#giveUpAtMs = performance.now() + options.giveUpMs;
    this.done = this.#run();
  }

  /** Why the last attempt failed; null before the first has. */
  get failure(): ApiError | null {
    return this.#failure;
  }

  /**
   * Resolves when the outage is over. Once it has been given up, only an attempt that is being made is waited for.
   * @throws ApiError when it is given up; the reason of `signal`
   */
  async over(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    if (this.#isGivenUp && !this.#isAttempting && this.#failure !== null) throw this.#failure;
    await untilAborted(this.#end.promise, signal);
  }

  async #run(): Promise<void> {
    const { signal, log } = this.#options;
    for (let failures = 1; !signal.aborted; failures++) {
      try {
        this.#isAttempting = true;
        await this.#options.attempt(signal);
        return this.#end.resolve();
      } catch (error) {
        if (signal.aborted) break;
        this.#isAttempting = false;
        this.#failure = startFailure(error);
        const leftMs = this.#giveUpAtMs - performance.now();
        if (leftMs <= 0) this.#giveUp(this.#failure);
        // The last attempt before it is given up is made when that is due.
        const pauseMs = this.#isGivenUp
          ? retryPauseMs(failures, GIVEN_UP_PAUSE_MS_MAX)
          : Math.min(retryPauseMs(failures, PAUSE_MS_MAX), leftMs);
        log.error("no machine can run", { error, retry_ms: Math.round(pauseMs) });
        await sleepUnlessAborted(pauseMs, signal);
      }
    }
    this.#end.reject(signal.reason);
  }

  #giveUp(failure: ApiError): void {
    this.#isGivenUp = true;
    this.#end.reject(failure);
    this.#end = unheard();
  }
}

/** A promise that may be rejected when nobody waits for it. */
function unheard(): PromiseWithResolvers<void> {
  const resolvers = Promise.withResolvers<void>();
  resolvers.promise.catch(() => undefined);
  return resolvers;
}
