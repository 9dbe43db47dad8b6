import { ApiError } from "../domain/errors.ts";
import type { GrepOutcome, GrepRequest } from "./grep.ts";
import type { GrepReply } from "./grep-worker.ts";
import { GREP_MS_MAX, GREP_RUNNING_COUNT_MAX, GREP_WAITING_COUNT_MAX } from "./limits.ts";

/** A search that does not keep its own time is ended after this, in `milliseconds`. */
const GRACE_MS = 5000;

/** In the executable all of the source is in one place, and entry points lie below it as they do in the source. */
const WORKER = new URL(Bun.isStandaloneExecutable ? "./storage/grep-worker.js" : "./grep-worker.ts", import.meta.url);

/** Runs searches in threads of their own, few at a time and in the order in which they came. */
class GrepThreads {
  #runningCount = 0;
  readonly #waiting: (() => void)[] = [];

  /**
   * @throws ApiError as `grep` does; `too_many_requests` when too many wait, `unavailable` when the thread ended;
   * the reason of `signal`
   */
  async run(request: GrepRequest, signal: AbortSignal): Promise<GrepOutcome> {
    using _turn = await this.#turn();
    signal.throwIfAborted();
    const reply = await inThread(request, signal);
    if ("outcome" in reply) return reply.outcome;
    if ("cause" in reply) throw new Error(`search failed: ${reply.cause}`);
    throw new ApiError(reply.error.error, reply.error.message, reply.error.details);
  }

  async #turn(): Promise<Disposable> {
    if (this.#runningCount >= GREP_RUNNING_COUNT_MAX) {
      if (this.#waiting.length >= GREP_WAITING_COUNT_MAX) {
        throw new ApiError("too_many_requests", `${GREP_WAITING_COUNT_MAX} searches are waiting already`);
      }
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    } else {
      this.#runningCount++;
    }
    return {
      [Symbol.dispose]: () => {
        // The place passes on to who waits.
        const next = this.#waiting.shift();
        if (next === undefined) this.#runningCount--;
        else next();
      },
    };
  }
}

/** The searches of this process. */
export const grepThreads = new GrepThreads();

/** Descriptors outlive a thread that is ended, so that one that nobody waits for is asked to stop, and ends by itself. */
async function inThread(request: GrepRequest, signal: AbortSignal): Promise<GrepReply> {
  const { promise, resolve, reject } = Promise.withResolvers<GrepReply>();
  const worker = new Worker(WORKER.href);
  using undo = new DisposableStack();
  undo.defer(() => worker.terminate());
  const onAbort = () => worker.postMessage(null);
  signal.addEventListener("abort", onAbort, { once: true });
  undo.defer(() => signal.removeEventListener("abort", onAbort));
  const timer = setTimeout(
    () => reject(new ApiError("unavailable", "the search took too long")),
    GREP_MS_MAX + GRACE_MS,
  );
  undo.defer(() => clearTimeout(timer));
  worker.onmessage = ({ data }: MessageEvent<GrepReply>) => resolve(data);
  worker.onerror = ({ message }) => reject(new Error(`search thread failed: ${message}`));
  worker.postMessage(request);
  const reply = await promise;
  signal.throwIfAborted();
  return reply;
}
