import { ownTurn } from "../system/turns.ts";
import type { App } from "./app.ts";

export interface ListenOptions {
  readonly app: App;
  readonly host: string;
  /** 0: any free port */
  readonly port: number;
  readonly tls?: { readonly cert: string; readonly key: string };
}

/** A listening server; disposal stops it. */
export interface Listener extends AsyncDisposable {
  readonly host: string;
  readonly port: number;
  readonly url: string;
  /** settles when the handlers of all routes exist, or the listener stops; never rejects */
  readonly composed: Promise<void>;
  /** Accepts no more connections, lets requests finish for `graceMs`, and then closes the remaining connections. */
  stop(graceMs: number): Promise<void>;
}

/** Grace period for requests when the listener is disposed, in `milliseconds`. */
const GRACE_MS_DEFAULT = 2000;

/**
 * Starts to listen.
 * @throws Error with a `code` such as EADDRINUSE or EACCES
 */
export function listen(options: ListenOptions): Listener {
  const { app, host, tls } = options;
  app.listen({
    hostname: host,
    port: options.port,
    ...(tls === undefined ? {} : { tls: { cert: Bun.file(tls.cert), key: Bun.file(tls.key) } }),
  });
  // Elysia would compose the application a second time, for plugins that load later. There are none.
  Object.assign(app, { compile: () => app });
  const server = app.server;
  const port = server?.port;
  if (!server || port === undefined) throw new Error(`cannot listen on ${host} port ${options.port}`);
  const shownHost = host.includes(":") ? `[${host}]` : host;

  const stopping = new AbortController();
  const composed = composeRoutes(app, stopping.signal);
  const stop = async (graceMs: number): Promise<void> => {
    stopping.abort();
    const graceful = server.stop(false);
    const timer = Promise.withResolvers<void>();
    const timeout = setTimeout(timer.resolve, graceMs);
    // Event streams do not end by themselves, so the wait needs a limit.
    await Promise.race([graceful, timer.promise]);
    clearTimeout(timeout);
    await server.stop(true);
  };
  return {
    host,
    port,
    composed,
    url: `${tls === undefined ? "http" : "https"}://${shownHost}:${port}`,
    stop,
    [Symbol.asyncDispose]: () => stop(GRACE_MS_DEFAULT),
  };
}

/**
 * Elysia composes a route in its first request, which takes about a millisecond, but several for the first routes with a
 * query and with a body, and for the schema of an instance, the largest. The simpler of them come first.
 */
export const COMPOSED_EARLY = [
  "GET /healthz",
  "GET /v1/operations/:id",
  "POST /v1/images/import",
  "POST /v1/instances",
];

/**
 * Composes the handlers and validators of some routes, one in each turn of the event loop, until `signal` aborts. To compose
 * all of them would take as long as the whole start, and 5 MiB for routes that are rarely used.
 */
async function composeRoutes({ routes }: App, signal: AbortSignal): Promise<void> {
  for (const name of COMPOSED_EARLY) {
    await ownTurn();
    if (signal.aborted) return;
    routes.find(({ method, path }) => `${method} ${path}` === name)?.compile();
  }
}
