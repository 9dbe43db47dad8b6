import type { ApiError } from "../../domain/errors.ts";
import type { Log } from "../../log.ts";
import { retryPauseMs, sleepUnlessAborted, untilAborted } from "../../system/waiting.ts";
import { startFailure } from "./machine-errors.ts";

/** Longest pause between attempts while callers wait. */
const PAUSE_MS_MAX = 15_000;
/** Longest pause once the outage has been given up. */
const GIVEN_UP_PAUSE_MS_MAX = 60_000;

export interface OutageOptions {
  /** Tries to get a machine; the outage ends when it resolves. @throws ApiError with a reason that callers may see */
  readonly attempt: (signal: AbortSignal) => Promise<void>;
  /** after this time without success, in `milliseconds`, callers no longer wait but are refused */
  readonly giveUpMs: number;
  readonly log: Log;
  /** ends the attempts; callers that wait get its reason */
  readonly signal: AbortSignal;
}

/**
 * A period in which no machine can be started. Until it ends, it tries to start one, at once and then again after pauses
 * that double.
 */
export class Outage {
  /** Resolves when no further attempt is made: the outage is over, or the service stops. Never rejects. */
  readonly done: Promise<void>;
  readonly #options: OutageOptions;
  readonly #giveUpAtMs: number;
  /** settles the waits of current callers */
  #end = deferred();
  #failure: ApiError | null = null;
  #isGivenUp = false;
  #isAttempting = false;

  constructor(options: OutageOptions) {
    this.#options = options;
    this.#giveUpAtMs = performance.now() + options.giveUpMs;
    this.done = this.#run();
  }

  /** The failure of the last attempt; null before the first failure. */
  get failure(): ApiError | null {
    return this.#failure;
  }

  /**
   * Resolves when the outage is over. Once it has been given up, this only waits for an attempt that is under way.
   * @throws ApiError when the outage is given up; the reason of `signal`
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
        // The last attempt before giving up is made exactly at that time.
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
    this.#end = deferred();
  }
}

/** A promise that may be rejected while no caller awaits it. */
function deferred(): PromiseWithResolvers<void> {
  const resolvers = Promise.withResolvers<void>();
  resolvers.promise.catch(() => undefined);
  return resolvers;
}
