import { Resolver } from "node:dns/promises";
import { dial } from "./dial.ts";
import type { ProxyRequest } from "./messages.ts";
import { askProxy, ProxyFaultError } from "./proxy-handshake.ts";
import { NameResolver } from "./resolver.ts";

/** A name that does not exist, as every name server knows (RFC 6761), so it asks no other server. */
const NO_NAME = "invalid";
const SERVER_MS_MAX = 2500;
const PROXY_MS_MAX = 10_000;
const HTTPS_PORT = 443;
/** Errors that mean that there is no name server, or none for this host. Everything else is an answer. */
const SILENCE = ["ETIMEOUT", "ECONNREFUSED", "EBADRESP", "ECANCELLED"];

/** Whether a name server, as `setServers` of node:dns takes it, gives any answer. */
export async function nameServerAnswers(server: string): Promise<boolean> {
  const resolver = new Resolver({ timeout: SERVER_MS_MAX, tries: 1 });
  resolver.setServers([server]);
  try {
    await resolver.resolve4(NO_NAME);
    return true;
  } catch (error) {
    return !SILENCE.includes((error as NodeJS.ErrnoException).code ?? "");
  }
}

/** The fault of a site's proxy; null when it accepts requests. Asks it for a name that does not exist. */
export async function proxyFault(proxy: ProxyRequest): Promise<string | null> {
  const signal = AbortSignal.timeout(PROXY_MS_MAX);
  try {
    const addresses = await new NameResolver().resolve(proxy.lookup);
    const { socket } = await dial(addresses, proxy.port, null, signal);
    using _socket = { [Symbol.dispose]: () => void socket.on("error", () => undefined).destroy() };
    try {
      await askProxy(socket, proxy, { kind: "name", host: NO_NAME, port: HTTPS_PORT }, signal);
    } catch (error) {
      // The name does not exist, so a refusal is right.
      if (error instanceof ProxyFaultError || signal.aborted) throw error;
    }
    return null;
  } catch (error) {
    return signal.aborted ? "it does not answer" : (error as Error).message;
  }
}
