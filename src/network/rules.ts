import { isIP, isIPv4 } from "node:net";
import ipaddr from "ipaddr.js";
import { ApiError } from "../domain/errors.ts";
import { type Destination, NETWORK_PORTS_COUNT_MAX, type NetworkPorts, type NetworkRule } from "../domain/network.ts";
import { isWithin, parseAddress, parseRange, type Range, unmapped } from "./addresses.ts";

const ANY_NAME = "*";
const WILDCARD = "*.";
const NAME_CHARACTERS_MAX = 253;
const PORT_MAX = 65_535;
const PORTS_DEFAULT: NetworkPorts = [80, 443];

const labelExpression = /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/;
/** Last labels of names that the C library, browsers and others read as an IPv4 address: `127.1`, `0x7f.1`, `0x7f000001`. */
const numberExpression = /^(?:\d+|0x[0-9a-f]*)$/;
const rangeExpression = /^([^/]+)\/(0|[1-9]\d{0,2})$/;

const NO_SCHEME = "must be a host without a scheme such as http://";

/** A wrong part of a rule. The message completes "PART …". */
class RuleError extends Error {
  override readonly name = "RuleError";
  readonly part: "host" | "ports";

  constructor(part: "host" | "ports", message: string) {
    super(message);
    this.part = part;
  }
}

/**
 * Checks a rule and brings it into its canonical spelling.
 * @param ports default: 80 and 443
 * @param field the rule's name in the request, for the error
 * @throws ApiError `validation_error` that names the wrong field
 */
export function parseRule(host: string, ports: NetworkPorts | undefined, field: string): NetworkRule {
  try {
    return { host: hostOf(host), ports: portsOf(ports ?? PORTS_DEFAULT) };
  } catch (error) {
    if (!(error instanceof RuleError)) throw error;
    const wrong = `${field}.${error.part}`;
    throw new ApiError("validation_error", `${wrong} ${error.message}`, { field: wrong });
  }
}

/**
 * Checks an address or a range of addresses, and brings it into its canonical spelling.
 * @param field its name in the request, for the error
 * @throws ApiError `validation_error`
 */
export function parseRangeText(text: string, field: string): string {
  const wrong = (reason: string): ApiError => new ApiError("validation_error", `${field} ${reason}`, { field });
  try {
    const host = hostOf(text);
    if (!isAddressRule({ host })) throw new RuleError("host", "must be an address or a range of addresses, not a name");
    return host;
  } catch (error) {
    throw error instanceof RuleError ? wrong(error.message) : error;
  }
}

/**
 * The ports at which the rules of the operator permit all of a host, which is spelled as in a rule; null when they permit none
 * of its ports.
 */
export function portsWithin(ceiling: readonly NetworkRule[], host: string): NetworkPorts | null {
  const wider = ceiling.filter((each) => hostCovers(comparable(each), comparable({ host, ports: "*" })));
  if (wider.some(({ ports }) => ports === "*")) return "*";
  const ports = [...new Set(wider.flatMap((each) => [...each.ports].map(Number)))].sort((a, b) => a - b);
  return ports.length === 0 ? null : ports.slice(0, NETWORK_PORTS_COUNT_MAX);
}

/**
 * Reads a rule as people write it: `HOST`, `HOST:PORT`, `HOST:80,443`, `HOST:80+443` or `HOST:*`, with an IPv6 address in
 * brackets.
 * @throws ApiError `validation_error` whose message begins with the text
 */
export function parseRuleText(text: string): NetworkRule {
  const quoted = JSON.stringify(text.slice(0, NAME_CHARACTERS_MAX));
  const wrong = (reason: string): ApiError => new ApiError("validation_error", `${quoted}: ${reason}`);
  if (text.includes("://")) throw wrong(NO_SCHEME);
  const [, bracketed, plain, ports] = /^(?:\[([^[\]]*)\]|([^:[\]]*))(?::([^:]*))?$/.exec(text) ?? [];
  if (bracketed === undefined && plain === undefined) throw wrong("an IPv6 address needs brackets: [2001:db8::1]:443");
  if (bracketed !== undefined && !bracketed.includes(":")) throw wrong("only an IPv6 address has brackets");
  try {
    return { host: hostOf(bracketed ?? plain ?? ""), ports: portsOf(portsOfText(ports)) };
  } catch (error) {
    if (error instanceof RuleError) throw wrong(`the ${error.part} ${error.message}`);
    throw error;
  }
}

/**
 * Reads a host without ports as a rule for all ports; `*` is refused.
 * @throws ApiError `validation_error` whose message begins with the text
 */
export function parseHostText(text: string): NetworkRule {
  try {
    const host = hostOf(text);
    if (host === ANY_NAME) throw new RuleError("host", "must not be *");
    return { host, ports: "*" };
  } catch (error) {
    if (!(error instanceof RuleError)) throw error;
    throw new ApiError("validation_error", `${JSON.stringify(text.slice(0, NAME_CHARACTERS_MAX))} ${error.message}`);
  }
}

/** A rule in the form that `parseRuleText` reads. */
export function ruleText({ host, ports }: NetworkRule): string {
  return `${host.includes(":") ? `[${host}]` : host}:${ports === "*" ? ports : ports.join(",")}`;
}

/** Whether a rule is about an address or a range of addresses, and not about names. */
export function isAddressRule({ host }: Pick<NetworkRule, "host">): boolean {
  return host.includes("/") || isIP(host) !== 0;
}

/**
 * Whether the rules of the operator permit all that a rule permits. Each port of the rule needs one rule that permits it for
 * all of the rule's hosts: ranges are not added up.
 */
export function covers(ceiling: readonly NetworkRule[], rule: NetworkRule): boolean {
  const { ports } = rule;
  const host = comparable(rule);
  const wider = ceiling.filter((each) => hostCovers(comparable(each), host));
  if (ports === "*") return wider.some((each) => each.ports === "*");
  return ports.every((port) => wider.some((each) => hasPort(each, port)));
}

/** Whether at least one rule permits a connection. A destination that is not in its canonical spelling is refused. */
export function allowsDestination(rules: readonly NetworkRule[], { kind, host, port }: Destination): boolean {
  if (!isPort(port)) return false;
  const fitting = rules.filter((rule) => hasPort(rule, port));
  if (kind === "name") return allowsName(fitting, host);
  if (canonicalAddress(host) !== host) return false;
  const range = parseRange(host);
  return fitting.some((rule) => hostCovers(comparable(rule), range));
}

/** Whether at least one rule permits connections to a name at any port. A name that is not in its canonical spelling is refused. */
export function allowsName(rules: readonly NetworkRule[], name: string): boolean {
  return isHostName(name) && rules.some((rule) => hostCovers(comparable(rule), name));
}

/**
 * Whether a text is a name that can be resolved: lower case, without a final dot, in an alphabet that no resolver, log or
 * program reads in two ways. A text that some program reads as an address is not a name.
 */
export function isHostName(text: string): boolean {
  if (text.length > NAME_CHARACTERS_MAX) return false;
  const labels = text.split(".");
  return labels.every((label) => labelExpression.test(label)) && !numberExpression.test(labels.at(-1) ?? "");
}

/**
 * The canonical spelling of an address: an IPv6 address as RFC 5952 writes it, and an IPv4 address in IPv6 form as IPv4. Null when
 * the text is not an address, or has a zone, or is a form that only some programs read as an address.
 */
export function canonicalAddress(text: string): string | null {
  return isIP(text) === 0 || text.includes("%") ? null : unmapped(parseAddress(text)).toString();
}

function hostOf(text: string): string {
  const wrong = (reason: string): RuleError => new RuleError("host", reason);
  if (text.length > NAME_CHARACTERS_MAX) throw wrong(`must be at most ${NAME_CHARACTERS_MAX} characters`);
  if (!/^[\x21-\x7e]+$/.test(text)) {
    throw wrong("must be printable ASCII characters; an international name has labels that begin with xn--");
  }
  const host = text.toLowerCase();
  if (host === ANY_NAME) return host;
  if (host.includes("://")) throw wrong(NO_SCHEME);
  if (host.includes("/")) return rangeOf(host);
  const address = canonicalAddress(host);
  if (address !== null) return address;
  if (host.includes("%")) throw wrong("must not have a zone");
  if (/[:[\]]/.test(host)) throw wrong("must be a name or an address, without a port and without brackets");
  const name = host.startsWith(WILDCARD) ? host.slice(WILDCARD.length) : host;
  if (name.includes("*")) throw wrong("may have * in place of the whole name, or as *. before a name");
  if (name.endsWith(".")) throw wrong("must not end with a dot");
  if (numberExpression.test(name.split(".").at(-1) ?? "")) {
    throw wrong("must be an IPv4 address of four decimal numbers without leading zeros, or a name");
  }
  if (!isHostName(name)) {
    throw wrong("must have labels of 1 to 63 letters, digits, hyphens and underscores, with no hyphen at either end");
  }
  return host;
}

function rangeOf(host: string): string {
  const wrong = (reason: string): RuleError => new RuleError("host", reason);
  const [, text = "", length = ""] = rangeExpression.exec(host) ?? [];
  const address = canonicalAddress(text);
  if (address === null) {
    throw wrong("must be a range of addresses such as 10.0.0.0/8 or 2001:db8::/32");
  }
  const parsed = parseAddress(text);
  const { IPv4, IPv6 } = ipaddr;
  const [family, bitsMax] = parsed instanceof IPv4 ? [IPv4, 32] : [IPv6, 128];
  const bits = Number(length);
  if (bits > bitsMax) throw wrong(`must have at most ${bitsMax} bits after the slash`);
  const isExact = String(family.networkAddressFromCIDR(`${parsed}/${bits}`)) === String(parsed);
  if (!isExact) throw wrong(`must have only zeros after the first ${bits} bits`);
  // A range of IPv4 addresses in IPv6 form has at least 96 bits, because the last of these is set.
  const [ownBits, ownBitsMax] = isIPv4(address) ? [bits - bitsMax + 32, 32] : [bits, bitsMax];
  return ownBits === ownBitsMax ? address : `${address}/${ownBits}`;
}

function portsOfText(text: string | undefined): NetworkPorts {
  if (text === undefined) return PORTS_DEFAULT;
  return text === "*" ? text : text.split(/[,+]/).map((port) => (/^\d{1,5}$/.test(port) ? Number(port) : Number.NaN));
}

function portsOf(ports: NetworkPorts): NetworkPorts {
  if (ports === "*") return ports;
  const isRight = ports.length > 0 && ports.length <= NETWORK_PORTS_COUNT_MAX && ports.every(isPort);
  if (!isRight)
    throw new RuleError("ports", `must be * or 1 to ${NETWORK_PORTS_COUNT_MAX} numbers from 1 to ${PORT_MAX}`);
  return [...new Set(ports)].sort((a, b) => a - b);
}

function isPort(port: number): boolean {
  return Number.isInteger(port) && port >= 1 && port <= PORT_MAX;
}

function hasPort({ ports }: NetworkRule, port: number): boolean {
  return ports === "*" || ports.includes(port);
}

/** The host of a rule as it is compared: a name or a pattern of names, or a range of addresses. */
type Comparable = string | Range;

/** Hosts of rules that were compared before. Lists are long and used often, but do not change. */
const compared = new WeakMap<NetworkRule, Comparable>();

function comparable(rule: NetworkRule): Comparable {
  const cached = compared.get(rule);
  if (cached !== undefined) return cached;
  const host = isAddressRule(rule) ? parseRange(rule.host) : rule.host;
  compared.set(rule, host);
  return host;
}

/** Whether a host covers another one. A name never covers an address, and no address a name. */
function hostCovers(ceiling: Comparable, host: Comparable): boolean {
  if (typeof ceiling === "string") return typeof host === "string" && nameCovers(ceiling, host);
  return typeof host !== "string" && ceiling.bits <= host.bits && isWithin(host.address, ceiling);
}

/** Whether a host of a rule about names covers a name, or another such host. */
function nameCovers(ceiling: string, host: string): boolean {
  if (ceiling === host) return true;
  // A name without a dot belongs to the site: only a rule with exactly that name covers it.
  if (ceiling === ANY_NAME) return host.includes(".");
  return ceiling.startsWith(WILDCARD) && host.endsWith(ceiling.slice(1));
}
