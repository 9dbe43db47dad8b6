import { chmod, rm } from "node:fs/promises";

/** Longest path of a socket, in `bytes`; the kernel truncates a longer one. */
const SOCKET_PATH_BYTES_MAX = 107;

/** Whether a path is short enough for a socket. */
export function isSocketPath(path: string): boolean {
  return Buffer.byteLength(path) <= SOCKET_PATH_BYTES_MAX;
}

export interface LocalHandlers {
  readonly fetch: (request: Request) => Promise<Response>;
  /** the answer to a request whose handler threw */
  readonly error: (error: Error) => Response;
}

/**
 * Serves requests on a socket that only this user can use, until disposal. Connections may carry nothing for any time. The
 * caller holds the lock of the data directory, so an existing socket belongs to a dead daemon.
 */
export async function serveLocally(path: string, handlers: LocalHandlers): Promise<AsyncDisposable> {
  await rm(path, { force: true });
  const options = {
    unix: path,
    // Bun ends connections after 10 s otherwise. It takes this setting for such a socket, but its types do not have it, and
    // `Server.timeout` changes nothing there.
    idleTimeout: 0,
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    ...handlers,
  };
  const server = Bun.serve(options as unknown as Bun.Serve.Options<undefined>);
  await chmod(path, 0o600);
  return {
    [Symbol.asyncDispose]: async () => {
      await server.stop(true);
      await rm(path, { force: true });
    },
  };
}
