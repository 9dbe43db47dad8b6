import Libsql from "libsql";

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

self.onmessage = ({ data }: MessageEvent<ScanRequest>) => {
  self.postMessage(answer(data));
};

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
