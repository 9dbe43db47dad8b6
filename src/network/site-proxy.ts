import { isIP } from "node:net";
import type { NetworkRule } from "../domain/network.ts";
import { addressKind, isInRange } from "./addresses.ts";
import { allowsName } from "./rules.ts";

/** A proxy through which the site's machines reach the outside. */
export interface SiteProxy {
  readonly kind: "http" | "socks5";
  /** name in lower case, or address without brackets */
  readonly host: string;
  readonly port: number;
  /** null when it needs no login */
  readonly credentials: { readonly user: string; readonly password: string } | null;
}

/** Names and ranges of addresses that are reached without the proxy. */
export interface ProxyBypass {
  readonly names: readonly NetworkRule[];
  readonly ranges: readonly string[];
}

/**
 * Whether a name or address is reached without the proxy, whose loopback is another one. The addresses that a name has do
 * not count.
 */
export function bypassesProxy(host: string, { names, ranges }: ProxyBypass): boolean {
  if (isIP(host) === 0) return host === "localhost" || allowsName(names, host);
  return addressKind(host) === "loopback" || ranges.some((range) => isInRange(host, range));
}
