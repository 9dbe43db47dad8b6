import type { Registry } from "./registry.ts";

/** A registry on the loopback that redirects its clients. */
export interface RedirectingRegistry extends AsyncDisposable {
  /** `127.0.0.1:<port>` */
  readonly host: string;
  /** beginning of the address that blobs are redirected to; null serves them */
  blobsAt: string | null;
  /** address of the token service; null when no token is needed */
  tokensAt: string | null;
}

/** Starts one in front of a registry that speaks plain HTTP. */
export function redirectingRegistry(target: Registry): RedirectingRegistry {
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    idleTimeout: 0,
    async fetch(request) {
      const url = new URL(request.url);
      if (targets.tokensAt !== null && !request.headers.has("authorization")) {
        const challenge = `Bearer realm="${targets.tokensAt}",service="redirecting"`;
        return new Response("{}", { status: 401, headers: { "www-authenticate": challenge } });
      }
      if (targets.blobsAt !== null && url.pathname.includes("/blobs/")) {
        return new Response(null, { status: 307, headers: { location: `${targets.blobsAt}${url.pathname}` } });
      }
      const headers = new Headers(request.headers);
      for (const name of ["host", "authorization"]) headers.delete(name);
      const answer = await fetch(`http://${target.host}${url.pathname}${url.search}`, { headers, decompress: false });
      return new Response(answer.body, { status: answer.status, headers: answer.headers });
    },
  });
  const targets: RedirectingRegistry = {
    host: `127.0.0.1:${server.port}`,
    blobsAt: null,
    tokensAt: null,
    [Symbol.asyncDispose]: () => server.stop(true),
  };
  return targets;
}

/** A service of this host that no import may contact. */
export interface Bystander extends Disposable {
  readonly port: number;
  /** connections so far */
  readonly callers: number;
}

export function bystander(): Bystander {
  let callers = 0;
  const open = (): void => {
    callers += 1;
  };
  const listener = Bun.listen({ hostname: "127.0.0.1", port: 0, socket: { open, data: () => undefined } });
  return {
    port: listener.port,
    get callers() {
      return callers;
    },
    [Symbol.dispose]: () => listener.stop(true),
  };
}
