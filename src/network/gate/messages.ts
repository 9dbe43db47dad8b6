import { isIP } from "node:net";
import type { Destination } from "../../domain/network.ts";
import { type AddressReach, GateError, type GateVerdict } from "../gate.ts";
import type { SiteProxy } from "../site-proxy.ts";

/** Longest request. Most of it are the addresses of this host and the operator's exceptions. */
export const REQUEST_BYTES_MAX = 1_048_576;
/** Longest answer that the daemon accepts. */
export const ANSWER_BYTES_MAX = 16_384;
/** Limit of the addresses of one name; further ones are ignored. */
export const ADDRESSES_COUNT_MAX = 32;
const MESSAGE_LENGTH_MAX = 1000;
/** Longest text of an address, which has no zone. */
const ADDRESS_LENGTH_MAX = 45;

/** How names are resolved. */
export interface Lookup {
  readonly host: string;
  /** name servers, as `setServers` of node:dns takes them */
  readonly servers: readonly string[];
  /** the addresses in this host's /etc/hosts for a name that the operator set; null asks the name servers */
  readonly hostsFile: readonly string[] | null;
}

/** The site's proxy, with what is needed to reach it. */
export interface ProxyRequest extends SiteProxy {
  readonly lookup: Lookup;
}

export interface ConnectRequest {
  readonly op: "connect";
  readonly destination: Destination;
  readonly lookup: Lookup;
  readonly reach: AddressReach;
  /** addresses and CIDRs at which this host reaches itself */
  readonly own: readonly string[];
  /** ports of the daemon's listeners, which nothing may reach */
  readonly ownPorts: readonly number[];
  readonly serverName: string | null;
  readonly idleMs: number;
  readonly proxy: ProxyRequest | null;
}

/** Asks a name server or the site's proxy for a name that does not exist, to learn whether it answers. */
export interface CheckRequest {
  readonly op: "check";
  /** as `setServers` of node:dns takes it, or the proxy */
  readonly what: { readonly server: string } | { readonly proxy: ProxyRequest };
}

export type Request = ConnectRequest | CheckRequest | { readonly op: "lookup"; readonly lookup: Lookup };

/** The verdicts that answer a check: the name does not exist, as expected, or the server or proxy is at fault. */
export const CHECKED = { fine: "no_such_name", faulty: "refused" } as const satisfies Record<string, GateVerdict>;

/** The answer to a request: for a connection one address, for a look-up all. */
export type Answer =
  | { readonly ok: true; readonly addresses: readonly string[] }
  | {
      readonly ok: false;
      readonly verdict: GateVerdict;
      readonly message: string;
      readonly addresses: readonly string[];
    };

const VERDICTS: readonly GateVerdict[] = [
  ...(["denied", "denied_private", "no_such_name", "refused", "unreachable", "timed_out", "limited"] as const),
];

/**
 * Reads the answer of the process, which an attacker from outside may have taken over.
 * @throws GateError of the answer, or when the answer is invalid
 */
export function parseAnswer(payload: Uint8Array): readonly string[] {
  const answer = record(payload);
  const addresses = addressList(answer["addresses"]);
  if (answer["ok"] === true && addresses.length > 0) return addresses;
  const verdict = VERDICTS.find((each) => each === answer["verdict"]);
  const message = answer["message"];
  if (answer["ok"] !== false || verdict === undefined || typeof message !== "string") throw invalidAnswer();
  throw new GateError(verdict, printable(message), addresses);
}

function record(payload: Uint8Array): Readonly<Record<string, unknown>> {
  try {
    const value: unknown = JSON.parse(Buffer.from(payload).toString("utf8"));
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch {
    // Not JSON.
  }
  throw invalidAnswer();
}

function addressList(value: unknown): string[] {
  if (!Array.isArray(value) || value.length > ADDRESSES_COUNT_MAX) throw invalidAnswer();
  return value.map((each: unknown) => {
    if (typeof each !== "string" || each.length > ADDRESS_LENGTH_MAX || isIP(each) === 0) throw invalidAnswer();
    return each;
  });
}

function invalidAnswer(): GateError {
  return new GateError("unreachable", "the connecting process sent an invalid answer");
}

/** Text of the process for a log. */
function printable(text: string): string {
  return text.slice(0, MESSAGE_LENGTH_MAX).replaceAll(/[^\x20-\x7e]/g, "?");
}
