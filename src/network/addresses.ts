import { isIP, isIPv4 } from "node:net";
import ipaddr from "ipaddr.js";

/**
 * Classifies an address for a machine that connects to it on behalf of another party. That party can reach `public`
 * addresses by itself; all others may be reachable by the machine alone.
 */
export type AddressKind =
  | "metadata"
  | "link-local"
  | "loopback"
  | "private"
  | "multicast"
  | "reserved"
  | "public"
  | "unspecified";

/** Severity of the kinds: of all kinds that apply to an address, the first in this list counts. */
const WORST_FIRST: readonly AddressKind[] = [
  ...(["metadata", "link-local", "loopback", "private", "multicast", "reserved"] as const),
  // An address may contain an IPv4 address at several positions; zeros at the unused ones mean nothing.
  ...(["public", "unspecified"] as const),
];

type Row = readonly [prefix: string, kind: AddressKind];

/** The first matching row counts, so a range stands before the larger range that contains it. */
const V4: readonly Row[] = [
  // Services that give credentials to machines, containers and pods: common addresses first, then single clouds.
  ["169.254.169.254/32", "metadata"],
  ["169.254.170.2/32", "metadata"],
  ["169.254.170.23/32", "metadata"],
  ["100.100.100.200/32", "metadata"],
  ["168.63.129.16/32", "metadata"],
  ["192.0.0.192/32", "metadata"],
  ["169.254.0.0/16", "link-local"],
  ["127.0.0.0/8", "loopback"],
  // Linux treats 0.0.0.0 as the host itself, and cannot route to the others.
  ["0.0.0.0/8", "unspecified"],
  ["10.0.0.0/8", "private"],
  ["100.64.0.0/10", "private"],
  ["172.16.0.0/12", "private"],
  ["192.168.0.0/16", "private"],
  ["192.0.0.0/24", "reserved"],
  ["192.0.2.0/24", "reserved"],
  ["192.88.99.0/24", "reserved"],
  ["198.18.0.0/15", "reserved"],
  ["198.51.100.0/24", "reserved"],
  ["203.0.113.0/24", "reserved"],
  ["224.0.0.0/4", "multicast"],
  ["240.0.0.0/4", "reserved"],
];

/** Like `V4`. */
const V6: readonly Row[] = [
  ["fd00:ec2::254/128", "metadata"],
  ["fd00:ec2::23/128", "metadata"],
  ["fd20:ce::254/128", "metadata"],
  ["fd00:42::42/128", "metadata"],
  ["fd00:c1::a9fe:a9fe/128", "metadata"],
  ["fd00:a9fe:a9fe::1/128", "metadata"],
  ["fd00:100::100:200/128", "metadata"],
  ["::1/128", "loopback"],
  ["::/128", "unspecified"],
  ["fe80::/10", "link-local"],
  ["fec0::/10", "private"],
  ["fc00::/7", "private"],
  ["ff00::/8", "multicast"],
  ["100::/64", "reserved"],
  ["2001:db8::/32", "reserved"],
  ["3fff::/20", "reserved"],
  ["5f00::/16", "reserved"],
];

interface Wrapper {
  readonly prefix: string;
  /** positions of bytes that may be an IPv4 address */
  readonly positions: readonly (readonly number[])[];
  /** positions of bytes that are an inverted IPv4 address */
  readonly inverted?: readonly number[];
}

const LAST = [12, 13, 14, 15];
/** IPv6 addresses that contain an IPv4 address, or lead to one. */
const WRAPPERS: readonly Wrapper[] = [
  // Mapped, translated (RFC 2765) and compatible (RFC 4291).
  { prefix: "::ffff:0:0/96", positions: [LAST] },
  { prefix: "::ffff:0:0:0/96", positions: [LAST] },
  { prefix: "::/96", positions: [LAST] },
  // NAT64: the well-known prefix, and the prefix that a site can divide (RFC 8215, with the forms of RFC 6052).
  { prefix: "64:ff9b::/96", positions: [LAST] },
  { prefix: "64:ff9b:1::/48", positions: [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], LAST] },
  { prefix: "2002::/16", positions: [[2, 3, 4, 5]] },
  // Teredo: the server's address, and the client's, inverted (RFC 4380).
  { prefix: "2001::/32", positions: [[4, 5, 6, 7]], inverted: LAST },
];
/** Interface identifiers before the IPv4 address in ISATAP, after any prefix (RFC 5214); the second for unique addresses. */
const ISATAP_IDS = ["0,0,94,254", "2,0,94,254"];

export type Address = ipaddr.IPv4 | ipaddr.IPv6;

export interface Range {
  readonly address: Address;
  /** number of leading bits that all addresses of the range share */
  readonly bits: number;
}

/** The same with their ranges parsed. */
class Tables {
  static #tables: Tables | null = null;
  readonly v4 = V4.map(([prefix, kind]) => ({ range: parseRange(prefix), kind }));
  readonly v6 = V6.map(([prefix, kind]) => ({ range: parseRange(prefix), kind }));
  readonly wrappers = WRAPPERS.map(({ prefix, ...wrapper }) => ({ range: parseRange(prefix), ...wrapper }));

  /** Parses them at the first call, because that takes two milliseconds, and most programs need no tables. */
  static get(): Tables {
    Tables.#tables ??= new Tables();
    return Tables.#tables;
  }
}

/**
 * Classifies an address in any spelling. An IPv6 address that contains an IPv4 address, or leads to one, has the worst kind
 * of all of them. A zone (`%eth0`) is ignored.
 * @throws TypeError when the text is not an address: the caller must refuse it
 */
export function addressKind(address: string): AddressKind {
  const parsed = parseAddress(address);
  if (parsed instanceof ipaddr.IPv4) return kindV4(parsed);
  const own = Tables.get().v6.find(({ range }) => isWithin(parsed, range));
  const kinds = [...(own === undefined ? [] : [own.kind]), ...wrappedV4(parsed).map(kindV4)];
  return WORST_FIRST.find((kind) => kinds.includes(kind)) ?? "public";
}

function kindV4(address: ipaddr.IPv4): AddressKind {
  return Tables.get().v4.find(({ range }) => isWithin(address, range))?.kind ?? "public";
}

/** The IPv4 addresses that an IPv6 address may lead to. */
function wrappedV4(address: ipaddr.IPv6): ipaddr.IPv4[] {
  const bytes = address.toByteArray();
  const at = (positions: readonly number[], mask = 0): ipaddr.IPv4 =>
    new ipaddr.IPv4(positions.map((index) => (bytes[index] ?? 0) ^ mask));
  const wrapped = Tables.get()
    .wrappers.filter(({ range }) => isWithin(address, range))
    .flatMap(({ positions, inverted }) => [
      ...positions.map((each) => at(each)),
      ...(inverted === undefined ? [] : [at(inverted, 0xff)]),
    ]);
  return ISATAP_IDS.includes(bytes.slice(8, 12).join()) ? [...wrapped, at(LAST)] : wrapped;
}

/** Whether an address lies in a range of the same family. */
export function isWithin(address: Address, range: Range): boolean {
  return address.kind() === range.address.kind() && address.match(range.address, range.bits);
}

/** Parses a CIDR, or an address as the range of that address alone. @throws TypeError when it has no address */
export function parseRange(text: string): Range {
  const [prefix = "", bits] = text.split("/");
  const address = parseAddress(prefix);
  return { address, bits: bits === undefined ? 8 * address.toByteArray().length : Number(bits) };
}

/**
 * Whether an address lies in a range, which is written as an address or a CIDR. An IPv4 address that is mapped into IPv6
 * counts as itself.
 * @throws TypeError when either is malformed
 */
export function isInRange(address: string, range: string): boolean {
  const parsed = range.includes("/") ? parseRange(range) : parseRange(unmapped(parseAddress(range)).toString());
  return isWithin(unmapped(parseAddress(address)), parsed);
}

/**
 * Whether an address is one of the targets, or lies in one; each counts as itself and as the IPv4 addresses that it leads to.
 * Targets are addresses and CIDRs.
 */
export function leadsToAny(address: string, targets: readonly string[]): boolean {
  const given = meanings(address);
  const texts = new Set(given.map(String));
  return targets.some((target) => {
    // A host may have thousands of IPv4 addresses, whose text has one form only.
    if (isIPv4(target)) return texts.has(target);
    if (!target.includes("/")) return meanings(target).some((each) => texts.has(String(each)));
    const range = parseRange(target);
    return given.some((each) => isWithin(each, range));
  });
}

/** An address, and the IPv4 addresses that it may lead to, without those that mean nothing. */
function meanings(text: string): Address[] {
  const address = parseAddress(text);
  if (address instanceof ipaddr.IPv4) return [address];
  return [address, ...wrappedV4(address).filter((each) => kindV4(each) !== "unspecified")];
}

/** An IPv4 address that is mapped into IPv6 as IPv4, and any other address as it is. */
export function unmapped(address: Address): Address {
  return address instanceof ipaddr.IPv6 && address.isIPv4MappedAddress() ? address.toIPv4Address() : address;
}

/**
 * Parses an address in any spelling, without its zone (`%eth0`).
 * @throws TypeError when the text is not an address: four decimal numbers without leading zeros, or IPv6
 */
export function parseAddress(text: string): Address {
  // The library also reads `127.1`, `0x7f000001` and octal numbers; and `::1.2.3.4` as if it were `::ffff:1.2.3.4`.
  if (isIP(text) === 0) throw new TypeError(`${JSON.stringify(text)} is not an address`);
  return ipaddr.parse((text.split("%")[0] ?? "").replace(/^::(?=\d+\.)/, "::0:"));
}

/** The 4 or 16 bytes of an address. @throws TypeError as `parseAddress` */
export function addressBytes(text: string): number[] {
  return parseAddress(text).toByteArray();
}

/** The text of an address of 4 or 16 `bytes`; of IPv6 as RFC 5952 writes it. */
export function addressText(bytes: Iterable<number>): string {
  return ipaddr.fromByteArray([...bytes]).toString();
}

/**
 * The address as which the C library and others read a name whose last part is a number, as in `127.1` and
 * `0x7f000001`; null for other names.
 */
export function numericAddress(name: string): string | null {
  // The parser of URLs knows all of these forms, and refuses numbers that are not addresses.
  const hostname = URL.parse(`http://${name}`)?.hostname ?? "";
  return isIPv4(hostname) ? hostname : null;
}
