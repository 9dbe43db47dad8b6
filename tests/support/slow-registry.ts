/**
 * A proxy on the loopback in front of a registry, for what a real one does only on a bad day: blobs that come slowly
 * or never, and answers that lead elsewhere.
 */
export interface SlowRegistry extends AsyncDisposable {
  /** `127.0.0.1:<port>` */
  readonly host: string;
  /** paths of the requests so far */
  readonly requests: readonly string[];
  /** Resolves at the next request of a blob. */
  blobWanted(): Promise<void>;
  /** Lets the blobs that wait go on, and all later ones. */
  release(): void;
}

export interface SlowRegistryOptions {
  /** answers in place of the registry where it gives something */
  readonly answer?: (request: Request, url: URL) => Response | null;
  /** blobs wait for `release`; default true */
  readonly holdBlobs?: boolean;
}

/** Starts a proxy in front of `target`, which is `host:port` of a registry that speaks plain HTTP. */
export function slowRegistry(target: string, options: SlowRegistryOptions = {}): SlowRegistry {
  const requests: string[] = [];
  const released = Promise.withResolvers<void>();
  let wanted = Promise.withResolvers<void>();
  if (options.holdBlobs === false) released.resolve();
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    idleTimeout: 0,
    async fetch(request) {
      const url = new URL(request.url);
      requests.push(url.pathname);
      const own = options.answer?.(request, url) ?? null;
      if (own !== null) return own;
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
    requests,
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
