/**
 * A proxy on the loopback in front of a registry, for what a real one does only on a bad day: blobs that come slowly
 * or never.
 */
export interface SlowRegistry extends AsyncDisposable {
  /** `127.0.0.1:<port>` */
  readonly host: string;
  /** Resolves at the next request of a blob. */
  blobWanted(): Promise<void>;
  /** Lets the blobs that wait go on, and all later ones. */
  release(): void;
}

/** Starts a proxy in front of `target`, which is `host:port` of a registry that speaks plain HTTP. */
export function slowRegistry(target: string): SlowRegistry {
  const released = Promise.withResolvers<void>();
  let wanted = Promise.withResolvers<void>();
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    idleTimeout: 0,
    async fetch(request) {
      const url = new URL(request.url);
      if (url.pathname.includes("/blobs/")) {
        wanted.resolve();
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
      wanted = Promise.withResolvers<void>();
      return wanted.promise;
    },
    release: () => released.resolve(),
    [Symbol.asyncDispose]: async () => {
      released.resolve();
      await server.stop(true);
    },
  };
}
