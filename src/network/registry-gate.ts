import { isIP } from "node:net";
import { ApiError } from "../domain/errors.ts";
import { forwardLoopback, type LoopbackEndpoint } from "../system/forward.ts";
import { openSocksProxy } from "../system/socks.ts";
import type { ToolNetwork } from "../system/tool-network.ts";
import {
  allowedAddresses,
  forbiddenAddress,
  listedLoopback,
  type RegistryHosts,
  type RegistrySettings,
  type ResolveHost,
} from "./registry-policy.ts";

/** Limit of remembered failures; more would not help in an error message. */
const FAILED_HOSTS_COUNT_MAX = 32;
const NAME_EXPRESSION = /^[a-z0-9._-]+$/;

/** Messages of skopeo when the proxy refused or failed a connection, or a forwarded connection failed. */
const REFUSED_BY_PROXY = "socks connect";
const CONNECTION_LOST = /EOF|connection reset|broken pipe/;
const DIAL_FAILED = /\bdial tcp \[?([0-9a-f.:]+?)\]?:(\d+): connect: (?:connection refused|cannot assign|network is)/;

/** A host that skopeo tried to connect to and did not reach. */
export interface FailedHost {
  /** with the port */
  readonly host: string;
  /** `forbidden` by the policy, or `unavailable` */
  readonly code: "forbidden" | "unavailable";
  /** the end of a sentence "the registry ... cannot be reached: "; for `forbidden` a sentence of its own */
  readonly reason: string;
}

/** The only way out of skopeo's network. */
export interface RegistryGate extends Disposable {
  readonly network: string;
  readonly environment: Readonly<Record<string, string>>;
  /** The last host that was not reached, if skopeo's message is about that; otherwise null. */
  failedHost(message: string): FailedHost | null;
}

export interface GateOptions {
  readonly network: ToolNetwork;
  readonly settings: RegistrySettings;
  readonly hosts: RegistryHosts;
  readonly resolve?: ResolveHost;
}

/**
 * Opens a gate for one call of skopeo. Registries redirect their clients, to storage of layers and to token services. The
 * policy of registries applies to each such connection, and to the address that it is made to.
 * @throws ApiError `unavailable` when this host cannot create a network for tools
 */
export function openRegistryGate(options: GateOptions): RegistryGate {
  const { network, settings } = options;
  const failedHosts: FailedHost[] = [];
  const onFailure = (failure: { host: string; error: unknown }): void => {
    if (failedHosts.length >= FAILED_HOSTS_COUNT_MAX) failedHosts.shift();
    failedHosts.push(failedHostOf(failure.host, failure.error));
  };
  // Mirrors are listed as well, because the operator named them.
  const mirrors = Object.fromEntries((settings.mirrors ?? []).map(({ host, ...access }) => [host, access]));
  const hosts = { ...options.hosts, ...mirrors };
  using stack = new DisposableStack();
  try {
    const resolve = async (host: string): Promise<readonly string[]> =>
      await allowedAddresses(canonicalHost(host), hosts, options.resolve);
    const { url } = stack.use(openSocksProxy({ network, resolve, onFailure }));
    const listed = listedLoopback(hosts);
    for (const endpoint of listed) stack.use(forwardLoopback(network, endpoint, onFailure));
    const owned = stack.move();
    return {
      network: network.path,
      environment: { HTTP_PROXY: url, HTTPS_PROXY: url },
      failedHost: (message) => unforwardedLoopback(message, listed) ?? lastFailure(message, failedHosts),
      [Symbol.dispose]: () => owned.dispose(),
    };
  } catch (error) {
    const reason = (error as Error).message;
    throw new ApiError("unavailable", "this host gives skopeo no network of its own", { reason }, { cause: error });
  }
}

/** The host in the spelling of the operator's list. @throws ApiError `forbidden` for an invalid name */
function canonicalHost(host: string): string {
  const [, name = "", port = ""] = /^(.*):(\d+)$/s.exec(host.toLowerCase()) ?? [];
  const bare = name.replace(/\.$/, "");
  if (!NAME_EXPRESSION.test(bare) && !isIP(bare.replace(/^\[|\]$/g, ""))) {
    throw new ApiError("forbidden", `the registry ${JSON.stringify(host)} has an invalid host name`);
  }
  // An IPv6 address has many spellings; URL gives the canonical one.
  return `${bare.startsWith("[") ? new URL(`http://${bare}`).hostname : bare}:${port}`;
}

/** Go bypasses the proxy for loopback addresses. Only the listed ones are forwarded, so others fail in this way. */
function unforwardedLoopback(message: string, listed: readonly LoopbackEndpoint[]): FailedHost | null {
  const [, address = "", port = ""] = DIAL_FAILED.exec(message) ?? [];
  if (!isIP(address) || listed.some((each) => each.address === address && each.port === Number(port))) return null;
  const host = address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
  return { host, code: "forbidden", reason: forbiddenAddress(host, address) };
}

/** The last failure that the message is about. A lost connection may also be the fault of the other server. */
function lastFailure(message: string, failedHosts: readonly FailedHost[]): FailedHost | null {
  if (message.includes(REFUSED_BY_PROXY)) return failedHosts.at(-1) ?? null;
  if (!CONNECTION_LOST.test(message)) return null;
  return failedHosts.findLast(({ host }) => new RegExp(`${RegExp.escape(host)}(?!\\d)`).test(message)) ?? null;
}

function failedHostOf(host: string, error: unknown): FailedHost {
  if (error instanceof ApiError) {
    const forbidden = error.code === "forbidden";
    return {
      host,
      code: forbidden ? "forbidden" : "unavailable",
      reason: forbidden ? error.message : "its name does not resolve",
    };
  }
  return { host, code: "unavailable", reason: reasonOf((error as NodeJS.ErrnoException).code) };
}

function reasonOf(code: string | undefined): string {
  switch (code) {
    case "ECONNREFUSED":
      return "connection refused";
    case "EHOSTUNREACH":
    case "ENETUNREACH":
      return "no route to it";
    default:
      return "it does not answer";
  }
}
