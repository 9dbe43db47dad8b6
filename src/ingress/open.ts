import type { IngressConfig } from "../config/ingress.ts";
import type { Log } from "../log.ts";
import { Gateway, type GatewayParts } from "./gateway.ts";
import { IngressListener } from "./listener.ts";

/** Listens for HTTP from outside to ports of sandboxes; null when the settings have no such listener. */
export function openIngress(
  config: IngressConfig | null,
  { log, ...parts }: Omit<GatewayParts, "domain"> & { readonly log: Log },
): IngressListener | null {
  if (config === null) return null;
  const { host, port, tls, isBehindProxy, address } = config;
  const upstream = new Gateway({ ...parts, domain: address.domain });
  return new IngressListener({ host, port, isBehindProxy, upstream, log, ...(tls === null ? {} : { tls }) });
}
