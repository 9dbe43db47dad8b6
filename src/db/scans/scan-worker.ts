import Libsql from "libsql";

/** Asks the thread to close its connection before it is terminated. It answers "closed". */
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

/** How long a statement waits for a writer in another process, in `milliseconds`; the same as in the main thread. */
const BUSY_TIMEOUT_MS = 2000;

// The thread for long queries, with its own connection.
declare const self: Worker;

let client: Libsql.Database | null = null;

self.onmessage = async ({ data }: MessageEvent<ScanRequest | CloseRequest>) => {
  if (data === "close") await close();
  self.postMessage(data === "close" ? ("closed" satisfies CloseReply) : answer(data));
};

/** A terminated thread does not close its connection, and libsql closes one only after the last of its statements. */
async function close(): Promise<void> {
  client?.close();
  client = null;
  Bun.gc(true);
  // Bun releases native objects in the next turn of the event loop.
  await new Promise((resolve) => setImmediate(resolve));
  Bun.gc(true);
}

/** Opens a connection that cannot write. libsql ignores its own option for that. */
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
