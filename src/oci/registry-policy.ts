import { lookup } from "node:dns/promises";
import { isIP, isIPv4 } from "node:net";
import { ApiError } from "../domain/errors.ts";
import { withinTime } from "../system/waiting.ts";

/** How the operator wants one registry host treated. */
export interface RegistrySettings {
  /** false refuses the host; default true */
  readonly allow?: boolean;
  /** speak plain HTTP, or accept any certificate; default false */
  readonly insecure?: boolean;
  /** PEM file of authorities that are trusted besides the system's own */
  readonly caFile?: string | null;
  /** asked for the same repositories first, in this order; never given the user's credentials */
  readonly mirrors?: readonly RegistryMirror[];
}

export interface RegistryMirror {
  /** with its port where it needs one */
  readonly host: string;
  readonly insecure?: boolean;
  readonly caFile?: string | null;
}

/**
 * By host as references spell it: with its port, else without. The entry `*` holds for every host that has none, and
 * does not count as listing a host.
 */
export type RegistryHosts = Readonly<Record<string, RegistrySettings>>;

/** Gives the addresses of a host name. */
export type ResolveHost = (name: string) => Promise<readonly string[]>;

const ANY_HOST = "*";
const LOCALHOST = ["127.0.0.1", "::1"];
/** Of HTTPS and HTTP. */
const DEFAULT_PORTS = [443, 80];
/** Name look-ups of the C library give up after longer than an import may wait without a word. */
const LOOKUP_MS = 10_000;

/**
 * Decides whether a host may be contacted, and how. Loopback, link-local, metadata and unspecified addresses belong to
 * this machine or its cloud, so only hosts that the operator listed may have them; private addresses are fine.
 * @param host as `parseRegistryReference` gives it
 * @throws ApiError `forbidden` when policy refuses it, `unavailable` when its name does not resolve
 */
export async function checkRegistryHost(
  host: string,
  hosts: RegistryHosts,
  resolve: ResolveHost = resolveHost,
): Promise<RegistrySettings> {
  const { listed, settings } = settingsFor(host, hosts);
  if (!listed) await judgedAddresses(host, resolve);
  return settings;
}

/**
 * The addresses at which a host may be connected now. Whoever connects to them, and looks nothing up again, holds the
 * policy whatever name servers say later. An entry without a port does not open all of this machine's: at the addresses
 * that have to be listed it holds for the usual ports, and for that of the reference if it names this host.
 * @param host with its port
 * @throws ApiError as `checkRegistryHost` does
 */
export async function allowedAddresses(
  host: string,
  hosts: RegistryHosts,
  options: { readonly reference: { readonly host: string }; readonly resolve?: ResolveHost },
): Promise<readonly string[]> {
  const { reference, resolve = resolveHost } = options;
  const { listed } = settingsFor(host, hosts);
  const isOwnPort = host === reference.host || DEFAULT_PORTS.some((port) => host.endsWith(`:${port}`));
  const isPlaceListed = entry(hosts, host) !== undefined || (listed && isOwnPort);
  return isPlaceListed ? await addressesOf(host, resolve) : await judgedAddresses(host, resolve);
}

/** Places on this machine's loopback that the operator listed: clients go there directly, whatever their proxy is. */
export function listedLoopback(
  hosts: RegistryHosts,
  reference: { readonly host: string },
): { address: string; port: number }[] {
  const named = [reference.host, ...Object.keys(hosts)].filter((host) => {
    const settings = entry(hosts, host) ?? entry(hosts, hostName(host));
    return settings !== undefined && settings.allow !== false;
  });
  return [...new Set(named)].flatMap((host) => {
    const bare = bareName(host);
    const loopback = isIP(bare) && forbiddenKind(bare) === "loopback" ? [bare] : [];
    const addresses = bare === "localhost" ? LOCALHOST : loopback;
    const port = /:(\d+)$/.exec(host)?.[1];
    const ports = port === undefined ? DEFAULT_PORTS : [Number(port)];
    return addresses.flatMap((address) => ports.map((each) => ({ address, port: each })));
  });
}

function settingsFor(host: string, hosts: RegistryHosts): { listed: boolean; settings: RegistrySettings } {
  const own = entry(hosts, host) ?? entry(hosts, hostName(host));
  const settings = own ?? entry(hosts, ANY_HOST) ?? {};
  if (settings.allow === false) {
    throw new ApiError("forbidden", `the operator does not allow the registry ${host}`, { registry: host });
  }
  return { listed: own !== undefined, settings };
}

async function addressesOf(host: string, resolve: ResolveHost): Promise<readonly string[]> {
  const bare = bareName(host);
  return isIP(bare) ? [bare] : await resolve(bare);
}

async function judgedAddresses(host: string, resolve: ResolveHost): Promise<readonly string[]> {
  const addresses = await addressesOf(host, resolve);
  for (const address of addresses) {
    if (forbiddenKind(address) === null) continue;
    throw new ApiError("forbidden", forbiddenAddress(host, address), { registry: host });
  }
  return addresses;
}

function entry(hosts: RegistryHosts, name: string): RegistrySettings | undefined {
  return Object.hasOwn(hosts, name) ? hosts[name] : undefined;
}

/** Without the port. */
function hostName(host: string): string {
  return host.replace(/:\d+$/, "");
}

/** Without port and brackets. */
function bareName(host: string): string {
  return hostName(host).replace(/^\[|\]$/g, "");
}

async function resolveHost(name: string): Promise<readonly string[]> {
  const unresolved = (reason: string, cause?: unknown): ApiError =>
    new ApiError("unavailable", `the registry's host name ${name} ${reason}`, { registry: name }, { cause });
  const looked = lookup(name, { all: true }).catch((error: unknown) => {
    throw unresolved("does not resolve", error);
  });
  const found = await withinTime(looked, LOOKUP_MS, () => {
    throw unresolved("could not be looked up in time");
  });
  return found.map((item) => item.address);
}

/** Says why a host with an address that has a `forbiddenKind` is refused. */
export function forbiddenAddress(host: string, address: string): string {
  return `the registry ${host} has the ${forbiddenKind(address)} address ${address}, which the operator has not allowed`;
}

/** What an address is when nobody but the operator may send us there, otherwise null. */
export function forbiddenKind(address: string): "loopback" | "link-local" | "metadata" | "unspecified" | null {
  if (isIPv4(address)) return forbiddenV4(address.split(".").map(Number));
  const bytes = ipv6Bytes(address);
  const startsWith = (prefix: readonly number[]): boolean => prefix.every((byte, index) => bytes[index] === byte);
  // IPv4 in IPv6 clothes: mapped, translated (NAT64), 6to4, and compatible.
  if (startsWith([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])) return forbiddenV4(bytes.slice(12));
  if (startsWith([0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0])) return forbiddenV4(bytes.slice(12));
  if (startsWith([0x20, 0x02])) return forbiddenV4(bytes.slice(2, 6));
  if (startsWith([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])) {
    return bytes[15] === 1 && startsWith(Array(15).fill(0)) ? "loopback" : forbiddenV4(bytes.slice(12));
  }
  if (bytes[0] === 0xfe && ((bytes[1] ?? 0) & 0xc0) === 0x80) return "link-local";
  // The address under which a cloud offers its machines their own credentials.
  if (startsWith([0xfd, 0, 0x0e, 0xc2]) && bytes.slice(4, 14).every((byte) => byte === 0) && bytes[15] === 0x54) {
    return bytes[14] === 2 ? "metadata" : null;
  }
  return null;
}

function forbiddenV4(bytes: readonly number[]): "loopback" | "link-local" | "metadata" | "unspecified" | null {
  const [a, b, c, d] = bytes;
  if (a === 169 && b === 254 && c === 169 && d === 254) return "metadata";
  if (a === 169 && b === 254) return "link-local";
  if (a === 127) return "loopback";
  // Linux takes every address of 0.0.0.0/8 that it has no route for as nowhere, and 0.0.0.0 as itself.
  if (a === 0) return "unspecified";
  return null;
}

/** The 16 bytes of an address that `isIP` accepted; a zone (`%eth0`) is ignored. */
function ipv6Bytes(address: string): number[] {
  const text = (address.split("%")[0] ?? "").replace(/(\d+)\.(\d+)\.(\d+)\.(\d+)$/, (_match, ...groups) => {
    const [a = 0, b = 0, c = 0, d = 0] = groups.slice(0, 4).map(Number);
    return `${((a << 8) | b).toString(16)}:${((c << 8) | d).toString(16)}`;
  });
  const [head = "", tail] = text.split("::");
  const groups = (part: string): number[] =>
    part === "" ? [] : part.split(":").map((group) => Number.parseInt(group, 16));
  const before = groups(head);
  const after = tail === undefined ? [] : groups(tail);
  const zeros: number[] = Array(Math.max(0, 8 - before.length - after.length)).fill(0);
  return [...before, ...zeros, ...after].flatMap((group) => [group >> 8, group & 0xff]);
}
