/** Ports of a rule: a list in ascending order without repetition, or all. */
export type NetworkPorts = readonly number[] | "*";

/** Permission to connect. `network/rules.ts` makes it from the texts of callers and operators. */
export interface NetworkRule {
  /**
   * In its one spelling: a name in lower case, `*.name` for the names below it, `*` for all names, an address, or a range of
   * addresses such as `10.0.0.0/8`
   */
  readonly host: string;
  readonly ports: NetworkPorts;
}

/** Hosts that the operator names in another setting than the rules. */
export interface NamedHosts {
  /** names, for all ports */
  readonly names: readonly NetworkRule[];
  /** addresses and ranges of addresses */
  readonly ranges: readonly string[];
}

/** Address and protocol of a proxy. */
export interface ProxyAddress {
  readonly kind: "http" | "socks5";
  /** name in lower case, or address without brackets */
  readonly host: string;
  readonly port: number;
}

export interface ProxyCredentials {
  readonly user: string;
  readonly password: string;
}

/** The destination of a guest's connection. */
export interface Destination {
  /** `name`: the guest looked up a name; `address`: it used the address itself */
  readonly kind: "name" | "address";
  /** name in lower case without a final dot, or address as `canonicalAddress` spells it */
  readonly host: string;
  /** 1 to 65535 */
  readonly port: number;
}

export const NETWORK_TLS = ["sni", "any"] as const;
/** `sni`: bytes sent to port 443 must be TLS for the name that was opened; `any`: all bytes are allowed. */
export type NetworkTls = (typeof NETWORK_TLS)[number];

export const NETWORK_DEFAULTS = ["deny", "allow"] as const;
/** The treatment of destinations that neither `allow` nor `deny` names; `allow` permits those that the operator allows. */
export type NetworkDefault = (typeof NETWORK_DEFAULTS)[number];

/** The network of a request: `none`, which is the default, or rules. */
export type NetworkInput = "none" | NetworkWish;

/** Absent fields have defaults. */
export interface NetworkWish {
  readonly default?: NetworkDefault | undefined;
  readonly allow?: readonly { readonly host: string; readonly ports?: NetworkPorts | undefined }[] | undefined;
  /** addresses and ranges of addresses; only with the default `allow` */
  readonly deny?: readonly string[] | undefined;
  readonly tls?: NetworkTls | undefined;
  readonly record?: boolean | undefined;
}

/** Largest number of rules of a request and of its denied ranges, and of ports of a rule that is not for all of them. */
export const NETWORK_RULES_COUNT_MAX = 256;
export const NETWORK_PORTS_COUNT_MAX = 256;

/** The network that an instance may use. An instance without one has null. */
export interface NetworkRequest {
  readonly allow: readonly NetworkRule[];
  /**
   * Absent: only what a rule of `allow` permits is permitted. Present: all that the operator allows is, except connections to
   * these addresses and ranges that no rule of `allow` permits.
   */
  readonly deny?: readonly string[];
  readonly tls: NetworkTls;
  /** true: the operator's rules apply alone, and the audit has the rules that would have been enough */
  readonly record: boolean;
}

/** The wire form of a network, which as part of a request means the same one. A recorded run has no rules of its own. */
export function networkInputOf(network: NetworkRequest | null): NetworkInput {
  if (network === null) return "none";
  const { allow, deny, tls, record } = network;
  if (record) return { tls, record };
  return deny === undefined ? { allow, tls } : { default: "allow", allow, deny, tls };
}

export const NETWORK_VERDICTS = [
  "allowed",
  "denied",
  "denied_private",
  "denied_sni",
  "no_such_name",
  "refused",
  "unreachable",
  "timed_out",
  "limited",
] as const;
export type NetworkVerdict = (typeof NETWORK_VERDICTS)[number];

/** The connections to one port of one host with the same verdict, with the field names of the API. */
export interface NetworkEntry {
  readonly host: string;
  /** null: a lookup of the name; it is `allowed` only while there is no entry of a connection to the name */
  readonly port: number | null;
  readonly verdict: NetworkVerdict;
  /** number of attempted connections; for a name without a port, number of lookups */
  readonly connections: number;
  /** bytes that the destination may have received */
  readonly bytes_sent: number;
  readonly bytes_received: number;
  /** ISO 8601 */
  readonly first_at: string;
  /** ISO 8601 */
  readonly last_at: string;
  /** at most 8 that were connected to, tried or refused; behind the site's proxy, the proxy's */
  readonly addresses: readonly string[];
}

/** A policy that an instance had, with the field names of the API. */
export interface NetworkPolicy {
  readonly network: NetworkInput;
  /** true: rules are missing, because they were too many to keep */
  readonly rules_truncated?: true;
}

/** A policy with its beginning. It ended with the beginning of the next one, or with the instance. */
export interface NetworkPeriod extends NetworkPolicy {
  /** ISO 8601 */
  readonly since: string;
  /** connections that were ended because this policy does not permit them */
  readonly connections_reset: number;
}

/** The audit of an instance's network, with the field names of the API. */
export interface NetworkAudit {
  /** at most 1000 */
  readonly entries: readonly NetworkEntry[];
  /** true: the entries or the policies are incomplete */
  readonly truncated: boolean;
  /** the policies in the order of time, when there was more than one: the first and the latest, at most 32 */
  readonly policies?: readonly NetworkPeriod[];
  /** of a recorded run: the rules that allow its connections, sorted */
  readonly policy?: readonly NetworkRule[];
}
