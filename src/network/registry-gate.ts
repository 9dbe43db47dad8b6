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

/** More is no help in an error message. */
const DEAD_ENDS_COUNT_MAX = 32;
const NAME_EXPRESSION = /^[a-z0-9._-]+$/;

/** What skopeo says when the proxy did not let it through, or could not; or when what is forwarded was not there. */
const REFUSED_BY_PROXY = "socks connect";
const CUT_OFF = /EOF|connection reset|broken pipe/;
const NOBODY_THERE = /\bdial tcp \[?([0-9a-f.:]+?)\]?:(\d+): connect: (?:connection refused|cannot assign|network is)/;

/** A place that skopeo wanted to go to and did not reach. */
export interface DeadEnd {
  /** with its port */
  readonly host: string;
  /** `forbidden` by the policy, or `unavailable` */
  readonly code: "forbidden" | "unavailable";
  /** ends a sentence: "the registry ... cannot be reached: "; of what is forbidden a sentence of its own */
  readonly reason: string;
}

/** The only way out of the network that skopeo runs in. */
export interface RegistryGate extends Disposable {
  readonly network: string;
  readonly environment: Readonly<Record<string, string>>;
  /** The last place that was not reached, as far as skopeo's words are about that. */
  deadEnd(words: string): DeadEnd | null;
}

export interface GateOptions {
  readonly network: ToolNetwork;
  readonly settings: RegistrySettings;
  readonly hosts: RegistryHosts;
  readonly resolve?: ResolveHost;
}

/**
 * Opens a gate for one call of skopeo. Registries send their clients on: to where layers are stored, to who hands out
 * tokens. The policy of registries holds for every such connection, at the address that it is made to.
 * @throws ApiError `unavailable` when this host gives tools no network
 */
export function openRegistryGate(options: GateOptions): RegistryGate {
  const { network, settings } = options;
  const deadEnds: DeadEnd[] = [];
  const onFailure = (failure: { host: string; error: unknown }): void => {
    if (deadEnds.length >= DEAD_ENDS_COUNT_MAX) deadEnds.shift();
    deadEnds.push(deadEndOf(failure.host, failure.error));
  };
  // The operator named the mirrors, too.
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
      deadEnd: (words) => directly(words, listed) ?? latest(words, deadEnds),
      [Symbol.dispose]: () => owned.dispose(),
    };
  } catch (error) {
    const reason = (error as Error).message;
    throw new ApiError("unavailable", "this host gives skopeo no network of its own", { reason }, { cause: error });
  }
}

/** What it is listed as. */
function canonicalHost(host: string): string {
  const [, name = "", port = ""] = /^(.*):(\d+)$/s.exec(host.toLowerCase()) ?? [];
  const bare = name.replace(/\.$/, "");
  if (!NAME_EXPRESSION.test(bare) && !isIP(bare.replace(/^\[|\]$/g, ""))) {
    throw new ApiError("forbidden", `the registry ${JSON.stringify(host)} has a name that no host has`);
  }
  // Of the many spellings of an IPv6 address, the usual one.
  return `${bare.startsWith("[") ? new URL(`http://${bare}`).hostname : bare}:${port}`;
}

/** Go asks no proxy for loopback addresses, where it finds nobody but those that are listed. */
function directly(words: string, listed: readonly LoopbackEndpoint[]): DeadEnd | null {
  const [, address = "", port = ""] = NOBODY_THERE.exec(words) ?? [];
  if (!isIP(address) || listed.some((each) => each.address === address && each.port === Number(port))) return null;
  const host = address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
  return { host, code: "forbidden", reason: forbiddenAddress(host, address) };
}

/** The connection to another place may have been cut off by its own server. */
function latest(words: string, deadEnds: readonly DeadEnd[]): DeadEnd | null {
  if (words.includes(REFUSED_BY_PROXY)) return deadEnds.at(-1) ?? null;
  if (!CUT_OFF.test(words)) return null;
  return deadEnds.findLast(({ host }) => new RegExp(`${RegExp.escape(host)}(?!\\d)`).test(words)) ?? null;
}

function deadEndOf(host: string, error: unknown): DeadEnd {
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
