import { isIP } from "node:net";
import { ApiError } from "../domain/errors.ts";
import { addressKind, numericAddress } from "./addresses.ts";
import { REGISTRY_FORBIDDEN } from "./gate/judge.ts";
import { type Gate, GateError } from "./gate.ts";

/** The operator's settings for one registry host. */
export interface RegistrySettings {
  /** false refuses the host; default: true */
  readonly allow?: boolean;
  /** allows plain HTTP and any certificate; default: false */
  readonly insecure?: boolean;
  /** PEM file of authorities that are trusted in addition to the system's */
  readonly caFile?: string | null;
  /** tried first for the same repositories, in this order; they never get the user's credentials */
  readonly mirrors?: readonly RegistryMirror[];
}

export interface RegistryMirror {
  /** with the port, unless it is the default one */
  readonly host: string;
  readonly insecure?: boolean;
  readonly caFile?: string | null;
}

/**
 * Settings by host, spelled as in references. An entry with a port lists that port of the host. An entry without a port
 * lists the ports of the host's scheme: 443, and 80 if plain HTTP is allowed. Its settings also apply to other ports, but
 * those are not listed. The entry `*` applies to all hosts without an entry, and does not list any.
 */
export type RegistryHosts = Readonly<Record<string, RegistrySettings>>;

/** Resolves a host name to its addresses. */
export type ResolveHost = (name: string) => Promise<readonly string[]>;

const ANY_HOST = "*";
const LOCALHOST = ["127.0.0.1", "::1"];
const HTTPS_PORT = 443;
const HTTP_PORT = 80;

/**
 * Decides whether a host may be contacted, and returns its settings. Only listed hosts may have addresses of this machine and
 * its cloud; private addresses are allowed.
 * @param host as `parseRegistryReference` returns it
 * @throws ApiError `forbidden` when the policy refuses the host, `unavailable` when its name does not resolve
 */
export async function checkRegistryHost(
  host: string,
  hosts: RegistryHosts,
  resolve: ResolveHost,
): Promise<RegistrySettings> {
  const { listed, settings } = settingsFor(host, hosts);
  if (!listed) await checkAddresses(host, resolve);
  return settings;
}

/**
 * Whether the operator listed a host with this port.
 * @param host with the port
 * @throws ApiError `forbidden` when the policy refuses the host
 */
export function isListed(host: string, hosts: RegistryHosts): boolean {
  return settingsFor(host, hosts).listed;
}

/** Listed endpoints on this machine's loopback. Clients connect to those directly, even when they have a proxy. */
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
  const exact = entry(hosts, host);
  const bare = exact ?? entry(hosts, hostName(host));
  const port = portOf(host);
  const listed = exact !== undefined || (bare !== undefined && port !== null && schemePorts(bare).includes(port));
  const any = entry(hosts, ANY_HOST);
  const settings = bare ?? any ?? {};
  if (settings.allow === false || (!listed && any?.allow === false)) {
    throw new ApiError("forbidden", `the operator does not allow the registry ${host}`, { registry: host });
  }
  return { listed, settings };
}

/** The ports that an entry without a port lists. */
function schemePorts({ insecure }: RegistrySettings): number[] {
  return insecure === true ? [HTTPS_PORT, HTTP_PORT] : [HTTPS_PORT];
}

function portOf(host: string): number | null {
  const port = /:(\d+)$/.exec(host)?.[1];
  return port === undefined ? null : Number(port);
}

/** @throws ApiError `forbidden` when the host has an address that only a listed host may have */
async function checkAddresses(host: string, resolve: ResolveHost): Promise<void> {
  const bare = bareName(host);
  const addresses = isIP(bare) ? [bare] : await resolve(bare);
  const forbidden = addresses.find(isForbidden);
  if (forbidden === undefined) return;
  throw new ApiError("forbidden", forbiddenAddress(host, forbidden), { registry: host });
}

function entry(hosts: RegistryHosts, name: string): RegistrySettings | undefined {
  return Object.hasOwn(hosts, name) ? hosts[name] : undefined;
}

/** The host without the port. */
function hostName(host: string): string {
  return host.replace(/:\d+$/, "");
}

/** The host without port and brackets. */
function bareName(host: string): string {
  return hostName(host).replace(/^\[|\]$/g, "");
}

/**
 * Looks registries' names up by the gate. Behind a site's proxy, which resolves names itself, they have no addresses here.
 * @throws ApiError `unavailable` when the name does not resolve
 */
export function registryResolver(gate: Pick<Gate, "lookup">, signal: AbortSignal): ResolveHost {
  return async (name) => {
    const numeric = numericAddress(name);
    if (numeric !== null) return [numeric];
    try {
      return (await gate.lookup(name, signal)) ?? [];
    } catch (error) {
      if (!(error instanceof GateError)) throw error;
      const reason = error.verdict === "no_such_name" ? "does not resolve" : `cannot be looked up: ${error.message}`;
      const message = `the registry's host name ${name} ${reason}`;
      throw new ApiError("unavailable", message, { registry: name }, { cause: error });
    }
  };
}

/** Whether only a listed host may have this address. */
export function isForbidden(address: string): boolean {
  return REGISTRY_FORBIDDEN.includes(addressKind(address));
}

/** The reason for refusing a host with an address that `isForbidden`. */
export function forbiddenAddress(host: string, address: string): string {
  const kind = addressKind(address);
  return `the registry ${host} has the ${kind} address ${address}, which the operator has not allowed`;
}
