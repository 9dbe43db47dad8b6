import Libsql from "libsql";

/** Asks the thread to close its connection, before it is ended; it answers "closed". */
export type CloseRequest = "close";
export type CloseReply = "closed";

/** One statement that only reads. */
export interface ScanRequest {
  readonly id: number;
  readonly path: string;
  readonly sql: string;
  readonly params: readonly unknown[];
}

export type ScanReply =
  | { readonly id: number; readonly rows: readonly (readonly unknown[])[] }
  | { readonly id: number; readonly cause: string };

/** As long as the main thread waits for a writer of another process, in `milliseconds`. */
const BUSY_TIMEOUT_MS = 2000;

// The thread that long scans run in, on a connection of its own.
declare const self: Worker;

let client: Libsql.Database | null = null;

self.onmessage = async ({ data }: MessageEvent<ScanRequest | CloseRequest>) => {
  if (data === "close") await close();
  self.postMessage(data === "close" ? ("closed" satisfies CloseReply) : answer(data));
};

/** A thread that ends does not close what it opened, and a connection is closed only with the last of its statements. */
async function close(): Promise<void> {
  client?.close();
  client = null;
  Bun.gc(true);
  // Native objects are given back when the event loop turns.
  await new Promise((resolve) => setImmediate(resolve));
  Bun.gc(true);
}

/** The library takes an option for it and does not honour it, so the connection itself is told not to write. */
function open(path: string): Libsql.Database {
  const opened = new Libsql(path, { timeout: BUSY_TIMEOUT_MS });
  opened.exec("PRAGMA query_only = ON");
  return opened;
}

function answer({ id, path, sql, params }: ScanRequest): ScanReply {
  try {
    client ??= open(path);
    return {
      id,
      rows: client
        .prepare(sql)
        .raw(true)
        .all(...params) as unknown[][],
    };
  } catch (error) {
    return { id, cause: Bun.inspect(error) };
  }
}
