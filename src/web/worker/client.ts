import type { AnswerMessage, JobMessage, JobName, Jobs } from "./messages.ts";

/** Address of the worker's script; the build inserts it. */
declare const BUILD_WORKER: string;

/** Jobs that may wait for the worker. */
const WAITING_COUNT_MAX = 64;

export interface AskOptions {
  /** ends the job; a running one ends with the worker, because nothing else stops a computation */
  readonly signal: AbortSignal;
  /** longest time that the job may run, in `milliseconds` */
  readonly deadlineMs: number;
  /** buffers of the request that move to the worker */
  readonly transfer?: Transferable[];
}

interface Waiting {
  readonly message: JobMessage;
  readonly options: AskOptions;
  readonly settle: (answer: AnswerMessage | Error) => void;
}

/** A worker, as far as it is used. */
export type WorkerLike = Pick<Worker, "postMessage" | "terminate" | "onmessage" | "onerror">;

/**
 * The only worker of the page. It starts with the first job and runs one at a time; the others wait here, where they can be
 * cancelled. A running job that is cancelled or takes too long ends with the worker, and the next one starts another.
 */
export class WorkerClient {
  readonly #start: () => WorkerLike;
  #worker: WorkerLike | null = null;
  #waiting: Waiting[] = [];
  #running: { readonly job: Waiting; readonly timer: ReturnType<typeof setTimeout> } | null = null;
  #lastId = 0;

  constructor(start: () => WorkerLike) {
    this.#start = start;
  }

  /** @throws Error if the job fails, takes too long, or too many others wait; the reason of the signal */
  ask<Name extends JobName>(
    job: Name,
    request: Jobs[Name]["request"],
    options: AskOptions,
  ): Promise<Jobs[Name]["reply"]> {
    const { signal } = options;
    signal.throwIfAborted();
    if (this.#waiting.length >= WAITING_COUNT_MAX) throw new Error("Too much is being computed at once.");
    this.#lastId += 1;
    const message = { id: this.#lastId, job, request } as JobMessage;
    const { promise, resolve, reject } = Promise.withResolvers<Jobs[Name]["reply"]>();
    const leave = () => this.#leave(message.id);
    const settle = (answer: AnswerMessage | Error) => {
      signal.removeEventListener("abort", leave);
      if (answer instanceof Error) reject(answer);
      else if ("problem" in answer) reject(new Error(answer.problem));
      else resolve(answer.reply as Jobs[Name]["reply"]);
    };
    this.#waiting.push({ message, options, settle });
    signal.addEventListener("abort", leave, { once: true });
    this.#next();
    return promise;
  }

  #next(): void {
    if (this.#running !== null) return;
    const job = this.#waiting.shift();
    if (job === undefined) return;
    const worker = this.#worker ?? this.#started();
    const timer = setTimeout(() => this.#stop(new Error("It took too long.")), job.options.deadlineMs);
    this.#running = { job, timer };
    worker.postMessage(job.message, job.options.transfer ?? []);
  }

  #started(): WorkerLike {
    const worker = this.#start();
    worker.onmessage = ({ data }: MessageEvent<AnswerMessage>) => {
      if (this.#running?.job.message.id === data.id) this.#end(data);
    };
    worker.onerror = () => this.#stop(new Error("The worker of this page failed."));
    this.#worker = worker;
    return worker;
  }

  #end(answer: AnswerMessage | Error): void {
    if (this.#running === null) return;
    const { job, timer } = this.#running;
    clearTimeout(timer);
    this.#running = null;
    job.settle(answer);
    this.#next();
  }

  #stop(reason: Error): void {
    this.#worker?.terminate();
    this.#worker = null;
    this.#end(reason);
  }

  #leave(id: number): void {
    const left = this.#waiting.find(({ message }) => message.id === id);
    this.#waiting = this.#waiting.filter((job) => job !== left);
    const reason = (left ?? this.#running?.job)?.options.signal.reason as Error;
    if (left !== undefined) left.settle(reason);
    else if (this.#running?.job.message.id === id) this.#stop(reason);
  }
}

interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { readonly createScriptURL: (address: string) => string },
  ): { createScriptURL(address: string): string };
}

/**
 * With Trusted Types, a browser accepts script addresses only from the policy that the index page's Content-Security-Policy
 * names. This is that policy, and it returns only the address of the worker.
 */
const policy = (globalThis as { readonly trustedTypes?: TrustedTypes }).trustedTypes?.createPolicy("coppice", {
  createScriptURL: () => BUILD_WORKER,
});

const client = new WorkerClient(
  () => new Worker(policy?.createScriptURL(BUILD_WORKER) ?? BUILD_WORKER, { type: "module" }),
);

/** {@link WorkerClient.ask} of the page's worker. */
export const ask: WorkerClient["ask"] = (job, request, options) => client.ask(job, request, options);
