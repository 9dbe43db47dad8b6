import type { CloseReply, CloseRequest, ScanReply, ScanRequest } from "./scan-worker.ts";

/** In the executable, all source is one module, and workers lie below it at their paths in the source. */
const WORKER = new URL(Bun.isStandaloneExecutable ? "./db/scans/scan-worker.js" : "./scan-worker.ts", import.meta.url);

/** Time without a query after which the thread and its connection are closed, in `milliseconds`. */
const IDLE_MS = 30_000;

/** A reading statement and its parameters. */
export interface ScanQuery {
  readonly sql: string;
  readonly params: readonly unknown[];
}

/** Rows, each as an array of its columns. */
export type Rows = readonly (readonly unknown[])[];

/** The database was closed. */
export class ClosedError extends Error {
  override readonly name = "ClosedError";

  constructor() {
    super("the database was closed");
  }
}

/** A thread with its own connection, which executes statements in the order of the calls. It runs while it is used. */
export class ScanThread implements Disposable {
  readonly #path: string;
  readonly #waiting = new Map<number, PromiseWithResolvers<Rows>>();
  #worker: Worker | null = null;
  #idle: NodeJS.Timeout | null = null;
  #lastId = 0;
  #isClosed = false;

  constructor(path: string) {
    this.#path = path;
  }

  /**
   * Executes a statement. It sees everything that was committed before the call.
   * @throws Error when the statement fails or the thread ends; ClosedError
   */
  async all(query: ScanQuery): Promise<Rows> {
    if (this.#isClosed) throw new ClosedError();
    const waiting = Promise.withResolvers<Rows>();
    const id = ++this.#lastId;
    this.#waiting.set(id, waiting);
    this.#thread().postMessage({ id, path: this.#path, ...query } satisfies ScanRequest);
    return await waiting.promise;
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    this.#end(new ClosedError());
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
