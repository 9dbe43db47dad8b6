import type { Accounts } from "../../domain/account/accounts.ts";
import { ApiError } from "../../domain/errors.ts";
import { RoundRobin } from "../../system/round-robin.ts";
import { withinTime } from "../../system/waiting.ts";
import { GREP_MS_MAX, GREP_RUNNING_COUNT_MAX } from "../limits.ts";
import type { GrepOutcome, GrepRequest } from "./grep.ts";
import type { GrepReply, GrepTask } from "./grep-worker.ts";

/** Time that a search may exceed its own time limit, in `milliseconds`. */
const GRACE_MS = 5000;

/** In the executable, all source is one module, and workers lie below it at their paths in the source. */
const WORKER = new URL(
  Bun.isStandaloneExecutable ? "./storage/tree/grep-worker.js" : "./grep-worker.ts",
  import.meta.url,
);

/** The owner of a search, and the resources of the search. */
export interface SearchOwner {
  /** searches of different owners take turns; default: one owner for all */
  readonly owner?: string | null;
  /** resources that the search reads; disposed of when its thread has ended, which may be after the answer */
  readonly held?: Disposable;
}

/** Runs searches in threads, a few at a time; those of one owner in the order of their calls. */
export class GrepThreads {
  readonly #accounts: Accounts;
  readonly #replyMsMax: number;
  #runningCount = 0;
  /** callbacks that get a slot */
  readonly #waiting = new RoundRobin<() => void>();

  /** @param replyMsMax time limit for the answer of a running search, in `milliseconds` */
  constructor(accounts: Accounts, replyMsMax = GREP_MS_MAX + GRACE_MS) {
    this.#accounts = accounts;
    this.#replyMsMax = replyMsMax;
  }

  /**
   * @throws ApiError as `grep` does; `too_many_requests` when too many searches of the owner wait, `unavailable` when the
   *   answer takes too long; the reason of `signal`
   */
  async run(request: GrepRequest, signal: AbortSignal, { owner = null, held }: SearchOwner = {}): Promise<GrepOutcome> {
    using undo = new DisposableStack();
    if (held !== undefined) undo.use(held);
    undo.use(await this.#turn(owner, signal));
    signal.throwIfAborted();
    const task = { request, stop: new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT) };
    const ended = inThread(task);
    const owned = undo.move();
    // A terminated thread would leave its files open. So it is asked to stop, and keeps its slot until it has ended.
    const thread = ended.finally(() => owned.dispose());
    thread.catch(() => undefined);
    const stop = () => void Atomics.store(new Int32Array(task.stop), 0, 1);
    using _stop = { [Symbol.dispose]: stop };
    signal.addEventListener("abort", stop, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", stop) };
    const reply = await withinTime(thread, this.#replyMsMax, () => null);
    signal.throwIfAborted();
    if (reply === null) throw new ApiError("unavailable", "the search took too long");
    if ("outcome" in reply) return reply.outcome;
    if ("cause" in reply) throw new Error(`search failed: ${reply.cause}`);
    throw new ApiError(reply.error.error, reply.error.message, reply.error.details);
  }

  async #turn(owner: string | null, signal: AbortSignal): Promise<Disposable> {
    if (this.#runningCount >= GREP_RUNNING_COUNT_MAX) await this.#wait(owner, signal);
    else this.#runningCount++;
    return {
      [Symbol.dispose]: () => {
        // The slot passes to the next in line.
        const next = this.#waiting.take();
        if (next === null) this.#runningCount--;
        else next();
      },
    };
  }

  async #wait(owner: string | null, signal: AbortSignal): Promise<void> {
    using _place = this.#accounts.take(owner, "waitingSearches");
    signal.throwIfAborted();
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const leave = () => {
      // A search that already has its slot returns it by disposal.
      if (this.#waiting.delete(owner, resolve)) reject(signal.reason);
    };
    this.#waiting.add(owner, resolve);
    signal.addEventListener("abort", leave, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", leave) };
    await promise;
  }
}

/** Resolves when the search has ended and closed its files, and its thread is terminated. */
async function inThread(task: GrepTask): Promise<GrepReply> {
  const { promise, resolve, reject } = Promise.withResolvers<GrepReply>();
  const worker = new Worker(WORKER.href);
  using _worker = { [Symbol.dispose]: () => worker.terminate() };
  worker.onmessage = ({ data }: MessageEvent<GrepReply>) => resolve(data);
  worker.onerror = ({ message }) => reject(new Error(`search thread failed: ${message}`));
  worker.postMessage(task);
  return await promise;
}
