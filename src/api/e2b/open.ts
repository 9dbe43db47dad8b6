import { join } from "node:path";
import type { E2bConfig } from "../../config/e2b.ts";
import { given } from "../../domain/given.ts";
import { IngressListener, type IngressOptions } from "../../ingress/listener.ts";
import { isSocketPath, serveLocally } from "../operator/local-server.ts";
import { createE2bApp } from "./app.ts";
import { E2bGateway } from "./gateway.ts";
import { connectLocally } from "./local-connection.ts";
import type { E2bOptions } from "./options.ts";

export interface E2bListenerParts extends Omit<E2bOptions, "settings"> {
  /** directory of the socket between the listener and the application, which only this user can enter */
  readonly directory: string;
  readonly times?: IngressOptions["times"];
}

/** The listener, whose disposal also ends the application. */
export interface E2bListener extends AsyncDisposable {
  readonly port: number;
  /** Number of connections of clients. */
  readonly clientsCount: number;
}

/** Listens for clients of E2B; null when the settings have no such listener. */
export async function openE2b(
  config: E2bConfig | null,
  { directory, times, ...options }: E2bListenerParts,
): Promise<E2bListener | null> {
  if (config === null) return null;
  await using stack = new AsyncDisposableStack();
  const { host, port, tls, isBehindProxy } = config;
  const parts = { ...options, settings: config };
  const path = join(directory, "e2b.sock");
  stack.use(await serveApp(path, parts));
  const upstream = new E2bGateway({ ...parts, connectApp: () => connectLocally(path) });
  const listener = stack.use(
    new IngressListener({
      ...{ host, port, isBehindProxy, upstream, log: options.log, ...given({ times }) },
      ...(tls === null ? {} : { tls }),
    }),
  );
  const owned = stack.move();
  return {
    port: listener.port,
    get clientsCount() {
      return listener.clientsCount;
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  };
}

/** Serves the application on a socket that only this user can use. @throws Error when the path is too long for a socket */
async function serveApp(path: string, parts: E2bOptions): Promise<AsyncDisposable> {
  if (!isSocketPath(path)) throw new Error(`the path ${path} is too long for a socket: choose a shorter data_dir`);
  const app = createE2bApp(parts);
  return await serveLocally(path, {
    fetch: async (request) => await app.fetch(request),
    error(error) {
      parts.log.error("a request of a client of E2B failed", { error });
      return Response.json({ code: 500, message: "internal error" }, { status: 500 });
    },
  });
}
