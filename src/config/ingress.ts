import type { IngressAddress } from "../domain/ingress.ts";
import { type ListenerConfig, type ListenerValues, listenerConfig, listenerProblems } from "./listener.ts";

/** Settings of the listener for HTTP from outside to ports of sandboxes. */
export interface IngressConfig extends ListenerConfig {
  readonly address: IngressAddress;
  /** whether owners may make ports public */
  readonly allowsPublic: boolean;
}

/** The settings by their names. */
interface IngressValues extends ListenerValues<"ingress"> {
  readonly "ingress.domain": string;
  readonly "ingress.public": "allow" | "never";
  readonly "listen.insecure": boolean;
  readonly public_url: string | null;
}

const DEFAULT_PORTS = { http: 80, https: 443 } as const;

/** Null: there is no such listener. */
export function ingressConfig(v: IngressValues): IngressConfig | null {
  const listener = listenerConfig("ingress", v);
  if (listener === null) return null;
  const { tls, isBehindProxy } = listener;
  const scheme = isBehindProxy || tls !== null ? "https" : "http";
  const port = isBehindProxy || listener.port === DEFAULT_PORTS[scheme] ? null : listener.port;
  const address = { scheme, domain: v["ingress.domain"], port } as const;
  return { ...listener, address, allowsPublic: v["ingress.public"] === "allow" };
}

/** Mistakes of settings that are right by themselves. */
export function ingressProblems(v: IngressValues): string[] {
  const problems = listenerProblems("ingress", v);
  const config = ingressConfig(v);
  if (config === null) return problems;
  const own = v.public_url === null ? null : new URL(v.public_url).hostname;
  const { domain } = config.address;
  if (own !== null && `.${own}`.endsWith(`.${domain}`)) {
    problems.push(`ingress.domain ${domain} must not contain the host of public_url: guests could set its cookies`);
  }
  return problems;
}
