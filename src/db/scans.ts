import type { CloseReply, CloseRequest, ScanReply, ScanRequest } from "./scan-worker.ts";

/** In the executable all of the source is in one place, and entry points lie below it as they do in the source. */
const WORKER = new URL(Bun.isStandaloneExecutable ? "./db/scan-worker.js" : "./scan-worker.ts", import.meta.url);

/** The thread and its connection are given back after this long without a scan, in `milliseconds`. */
const IDLE_MS = 30_000;

/** Rows that are skipped within a millisecond; more of them are skipped in the thread. */
export const FAR_OFFSET_MIN = 5000;

type Rows = readonly (readonly unknown[])[];

/** Statements that read for long, in a thread of their own: the event loop goes on meanwhile. */
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
   * Rows of a statement that only reads, as arrays of its columns. It sees what was committed before.
   * @throws Error when the statement fails or the thread ends
   */
  async all(query: { readonly sql: string; readonly params: readonly unknown[] }): Promise<Rows> {
    const waiting = Promise.withResolvers<Rows>();
    const id = ++this.#lastId;
    this.#waiting.set(id, waiting);
    this.#thread().postMessage({ id, path: this.#path, ...query } satisfies ScanRequest);
    return await waiting.promise;
  }

  /** The first column of what a query gives, as ids. @throws as `all` does */
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
   * Ends the thread once it has done what it was given and closed its connection, and keeps no process for that. Ended
   * before, its descriptors would stay, and within a statement the library would abort the process.
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
    worker.unref();
  }

  #end(reason: Error): void {
    if (this.#idle !== null) clearTimeout(this.#idle);
    this.#retire();
    for (const waiting of this.#waiting.values()) waiting.reject(reason);
    this.#waiting.clear();
  }
}
