/**
 * A proxy on the loopback in front of a registry, for faults that a real one has only on a bad day: blobs that arrive
 * slowly or never.
 */
export interface SlowRegistry extends AsyncDisposable {
  /** `127.0.0.1:<port>` */
  readonly host: string;
  /** Resolves at the next request of a blob. */
  blobWanted(): Promise<void>;
  /** Releases the blobs that wait, and all later ones. */
  release(): void;
}

/** Starts a proxy in front of `target`, the `host:port` of a registry that speaks plain HTTP. */
export function slowRegistry(target: string): SlowRegistry {
  const released = Promise.withResolvers<void>();
  let blobRequest = Promise.withResolvers<void>();
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    idleTimeout: 0,
    async fetch(request) {
      const url = new URL(request.url);
      if (url.pathname.includes("/blobs/")) {
        blobRequest.resolve();
        await released.promise;
      }
      const headers = new Headers(request.headers);
      headers.delete("host");
      const answer = await fetch(`http://${target}${url.pathname}${url.search}`, { headers, decompress: false });
      return new Response(answer.body, { status: answer.status, headers: answer.headers });
    },
  });
  return {
    host: `127.0.0.1:${server.port}`,
    blobWanted: () => {
      blobRequest = Promise.withResolvers<void>();
      return blobRequest.promise;
    },
    release: () => released.resolve(),
    [Symbol.asyncDispose]: async () => {
      released.resolve();
      await server.stop(true);
    },
  };
}
