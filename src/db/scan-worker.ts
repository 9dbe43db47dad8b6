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

function answer({ id, path, sql, params }: ScanRequest): ScanReply {
  try {
    client ??= new Libsql(path, { timeout: BUSY_TIMEOUT_MS, readonly: true });
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
