import { isIP } from "node:net";
import type { NamedHosts, ProxyAddress, ProxyCredentials } from "../domain/network.ts";
import { addressKind, isInRange } from "./addresses.ts";
import { allowsName } from "./rules.ts";

/** A proxy through which the site's machines reach the outside. */
export interface SiteProxy extends ProxyAddress {
  /** null when it needs no login */
  readonly credentials: ProxyCredentials | null;
}

/**
 * Whether a name or address is reached without the proxy, whose loopback is another one. The addresses that a name has do
 * not count.
 */
export function bypassesProxy(host: string, { names, ranges }: NamedHosts): boolean {
  if (isIP(host) === 0) return host === "localhost" || allowsName(names, host);
  return addressKind(host) === "loopback" || ranges.some((range) => isInRange(host, range));
}
