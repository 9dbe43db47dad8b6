import type { CloseReply, CloseRequest, ScanReply, ScanRequest } from "./scan-worker.ts";

/** In the executable, all source is one module, and workers lie below it at their paths in the source. */
const WORKER = new URL(Bun.isStandaloneExecutable ? "./db/scan-worker.js" : "./scan-worker.ts", import.meta.url);

/** Time without a query after which the thread and its connection are closed, in `milliseconds`. */
const IDLE_MS = 30_000;

/** Offset from which a query runs in the thread. Skipping fewer rows takes less than a millisecond. */
export const LARGE_OFFSET_MIN = 5000;

/** The part of a list that is read, newest first. */
export interface ListWindow {
  readonly limit: number;
  readonly offset: number;
  /** bounds of the creation time in `milliseconds`, both inclusive */
  readonly sinceMs?: number | undefined;
  readonly untilMs?: number | undefined;
}

type Rows = readonly (readonly unknown[])[];

/** Runs long queries in a thread, so that they do not block the event loop. */
export class Scans implements Disposable {
  readonly #path: string;
  readonly #waiting = new Map<number, PromiseWithResolvers<Rows>>();
  #worker: Worker | null = null;
  #idle: NodeJS.Timeout | null = null;
  #lastId = 0;

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Rows of a reading statement, each as an array of its columns. It sees everything that was committed before the call.
   * @throws Error when the statement fails or the thread ends
   */
  async all(query: { readonly sql: string; readonly params: readonly unknown[] }): Promise<Rows> {
    const waiting = Promise.withResolvers<Rows>();
    const id = ++this.#lastId;
    this.#waiting.set(id, waiting);
    this.#thread().postMessage({ id, path: this.#path, ...query } satisfies ScanRequest);
    return await waiting.promise;
  }

  /** The first column of a query's rows, as ids. @throws as `all` does */
  async ids<Id extends string>(query: {
    toSQL(): { readonly sql: string; readonly params: readonly unknown[] };
  }): Promise<Id[]> {
    return (await this.all(query.toSQL())).map(([id]) => id as Id);
  }

  [Symbol.dispose](): void {
    this.#end(new Error("the database was closed"));
  }

  #thread(): Worker {
    if (this.#idle !== null) clearTimeout(this.#idle);
    if (this.#worker !== null) return this.#worker;
    const worker = new Worker(WORKER.href);
    worker.onmessage = ({ data }: MessageEvent<ScanReply>) => this.#onReply(data);
    worker.onerror = ({ message }) => {
      worker.terminate();
      this.#worker = null;
      this.#end(new Error(`scan thread failed: ${message}`));
    };
    this.#worker = worker;
    return worker;
  }

  #onReply(reply: ScanReply): void {
    const waiting = this.#waiting.get(reply.id);
    this.#waiting.delete(reply.id);
    if ("rows" in reply) waiting?.resolve(reply.rows);
    else waiting?.reject(new Error(`scan failed: ${reply.cause}`));
    if (this.#waiting.size > 0) return;
    this.#idle = setTimeout(() => this.#retire(), IDLE_MS);
    this.#idle.unref();
  }

  /**
   * Ends the thread when it has answered everything and closed its connection; meanwhile it does not keep the process alive.
   * Terminating it earlier would leak descriptors, and abort the process if a statement is running.
   */
  #retire(): void {
    const worker = this.#worker;
    this.#worker = null;
    if (worker === null) return;
    worker.onmessage = ({ data }: MessageEvent<ScanReply | CloseReply>) => {
      if (data === "closed") worker.terminate();
    };
    worker.onerror = () => worker.terminate();
    worker.postMessage("close" satisfies CloseRequest);
    // The types of browsers, with which the page is checked, lack it.
    (worker as Worker & { unref(): void }).unref();
  }

  #end(reason: Error): void {
    if (this.#idle !== null) clearTimeout(this.#idle);
    this.#retire();
    for (const waiting of this.#waiting.values()) waiting.reject(reason);
    this.#waiting.clear();
  }
}
