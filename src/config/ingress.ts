import type { IngressAddress } from "../domain/ingress.ts";

/** Settings of the listener for HTTP from outside to ports of sandboxes. */
export interface IngressConfig {
  readonly host: string;
  readonly port: number;
  readonly tls: { readonly cert: string; readonly key: string } | null;
  /** whether a reverse proxy with TLS is in front */
  readonly isBehindProxy: boolean;
  readonly address: IngressAddress;
  /** whether owners may make ports public */
  readonly allowsPublic: boolean;
}

/** The settings by their names. */
interface IngressValues {
  readonly "ingress.listen": string | null;
  readonly "ingress.domain": string;
  readonly "ingress.tls_cert": string | null;
  readonly "ingress.tls_key": string | null;
  readonly "ingress.behind_proxy": boolean;
  readonly "ingress.public": "allow" | "never";
  readonly "listen.insecure": boolean;
  readonly public_url: string | null;
}

const DEFAULT_PORTS = { http: 80, https: 443 } as const;
const listenExpression = /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([1-9][0-9]{0,4})$/;
const loopbackExpression = /^(127\.|localhost$|::1$|\[::1\]$)/;
const PORT_MAX = 65_535;

/** Whether only this machine reaches an address. */
export function isLoopback(host: string): boolean {
  return loopbackExpression.test(host);
}

/** An address and a port, such as `127.0.0.1:8644`; undefined when the text is not that. */
export function readListen(raw: unknown): string | undefined {
  return typeof raw === "string" && parseListen(raw) !== null ? raw : undefined;
}

function parseListen(text: string): { readonly host: string; readonly port: number } | null {
  const [, bracketed, plain = "", digits] = listenExpression.exec(text) ?? [];
  const port = Number(digits);
  return digits === undefined || port > PORT_MAX ? null : { host: bracketed ?? plain, port };
}

/** Null: there is no such listener. */
export function ingressConfig(v: IngressValues): IngressConfig | null {
  const place = parseListen(v["ingress.listen"] ?? "");
  if (place === null) return null;
  const [cert, key, isBehindProxy] = [v["ingress.tls_cert"], v["ingress.tls_key"], v["ingress.behind_proxy"]];
  const tls = cert === null || key === null ? null : { cert, key };
  const scheme = isBehindProxy || tls !== null ? "https" : "http";
  const port = isBehindProxy || place.port === DEFAULT_PORTS[scheme] ? null : place.port;
  const address = { scheme, domain: v["ingress.domain"], port } as const;
  return { ...place, tls, isBehindProxy, address, allowsPublic: v["ingress.public"] === "allow" };
}

/** Mistakes of settings that are right by themselves. */
export function ingressProblems(v: IngressValues): string[] {
  const problems: string[] = [];
  if ((v["ingress.tls_cert"] === null) !== (v["ingress.tls_key"] === null)) {
    problems.push("ingress.tls_cert and ingress.tls_key belong together");
  }
  const config = ingressConfig(v);
  if (config === null) return problems;
  if (!isLoopback(config.host) && config.tls === null && !v["listen.insecure"]) {
    problems.push(
      `ingress.listen ${v["ingress.listen"]} is reachable from other machines: set ingress.tls_cert and ingress.tls_key, or listen.insecure = true`,
    );
  }
  const own = v.public_url === null ? null : new URL(v.public_url).hostname;
  const { domain } = config.address;
  if (own !== null && `.${own}`.endsWith(`.${domain}`)) {
    problems.push(`ingress.domain ${domain} must not contain the host of public_url: guests could set its cookies`);
  }
  return problems;
}
