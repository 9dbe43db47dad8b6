import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { ApiError } from "../domain/errors.ts";
import { withinTime } from "../system/waiting.ts";
import { type AddressKind, addressKind } from "./addresses.ts";

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
 * By host as references spell it. A host with its port is listed at that one. A host without a port is listed at those
 * that its scheme has: 443, and 80 where plain HTTP is spoken to it; at others its settings hold, but for opening
 * anything. The entry `*` holds for every host that has none, and does not count as listing a host.
 */
export type RegistryHosts = Readonly<Record<string, RegistrySettings>>;

/** Gives the addresses of a host name. */
export type ResolveHost = (name: string) => Promise<readonly string[]>;

const ANY_HOST = "*";
const LOCALHOST = ["127.0.0.1", "::1"];
const HTTPS_PORT = 443;
const HTTP_PORT = 80;
/** What only the operator may send us to, since it belongs to this machine or its cloud. */
const FORBIDDEN: readonly AddressKind[] = ["loopback", "link-local", "metadata", "unspecified"];
/** Name look-ups of the C library give up after longer than an import may wait without a word. */
const LOOKUP_MS = 10_000;

/**
 * Decides whether a host may be contacted, and how. Only hosts that the operator listed may have an address of those that
 * are FORBIDDEN; private addresses are fine.
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
 * policy whatever name servers say later.
 * @param host with its port
 * @throws ApiError as `checkRegistryHost` does
 */
export async function allowedAddresses(
  host: string,
  hosts: RegistryHosts,
  resolve: ResolveHost = resolveHost,
): Promise<readonly string[]> {
  const { listed } = settingsFor(host, hosts);
  return listed ? await addressesOf(host, resolve) : await judgedAddresses(host, resolve);
}

/** Places on this machine's loopback that the operator listed: clients go there directly, whatever their proxy is. */
export function listedLoopback(hosts: RegistryHosts): { address: string; port: number }[] {
  return Object.entries(hosts).flatMap(([host, settings]) => {
    if (settings.allow === false) return [];
    const bare = bareName(host);
    const loopback = isIP(bare) && addressKind(bare) === "loopback" ? [bare] : [];
    const addresses = bare === "localhost" ? LOCALHOST : loopback;
    const port = portOf(host);
    const ports = port === null ? schemePorts(settings) : [port];
    return addresses.flatMap((address) => ports.map((each) => ({ address, port: each })));
  });
}

function settingsFor(host: string, hosts: RegistryHosts): { listed: boolean; settings: RegistrySettings } {
  const place = entry(hosts, host);
  const bare = place ?? entry(hosts, hostName(host));
  const port = portOf(host);
  const listed = place !== undefined || (bare !== undefined && port !== null && schemePorts(bare).includes(port));
  const any = entry(hosts, ANY_HOST);
  const settings = bare ?? any ?? {};
  if (settings.allow === false || (!listed && any?.allow === false)) {
    throw new ApiError("forbidden", `the operator does not allow the registry ${host}`, { registry: host });
  }
  return { listed, settings };
}

/** What an entry without a port lists. */
function schemePorts({ insecure }: RegistrySettings): number[] {
  return insecure === true ? [HTTPS_PORT, HTTP_PORT] : [HTTPS_PORT];
}

function portOf(host: string): number | null {
  const port = /:(\d+)$/.exec(host)?.[1];
  return port === undefined ? null : Number(port);
}

async function addressesOf(host: string, resolve: ResolveHost): Promise<readonly string[]> {
  const bare = bareName(host);
  return isIP(bare) ? [bare] : await resolve(bare);
}

async function judgedAddresses(host: string, resolve: ResolveHost): Promise<readonly string[]> {
  const addresses = await addressesOf(host, resolve);
  for (const address of addresses) {
    if (!isForbidden(address)) continue;
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

/** Nobody but the operator may send us there. */
export function isForbidden(address: string): boolean {
  return FORBIDDEN.includes(addressKind(address));
}

/** Says why a host with an address that `isForbidden` is refused. */
export function forbiddenAddress(host: string, address: string): string {
  const kind = addressKind(address);
  return `the registry ${host} has the ${kind} address ${address}, which the operator has not allowed`;
}
