import { isIP } from "node:net";
import { ApiError } from "../domain/errors.ts";
import type { ToolNetwork } from "../system/tool-network.ts";
import { numericAddress } from "./addresses.ts";
import { type Gate, type GateConnection, GateError } from "./gate.ts";
import {
  forbiddenAddress,
  isListed,
  listedLoopback,
  type RegistryHosts,
  type RegistrySettings,
} from "./registry-policy.ts";
import { forwardLoopback, type LoopbackEndpoint } from "./tool-proxy/forward.ts";
import { openSocksProxy } from "./tool-proxy/socks.ts";

/** Limit of remembered failures; more would not help in an error message. */
const FAILED_HOSTS_COUNT_MAX = 32;
const NAME_EXPRESSION = /^[a-z0-9._-]+$/;

/** A registry may take long to begin with its answer. */
const TRANSFER = { account: null, serverName: null, idleMs: 3_600_000 } as const;
const REACH = { forbidden: "registry", except: [] } as const;

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
  readonly gate: Gate;
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
    const calls = new AbortController();
    stack.defer(() => calls.abort());
    const connect = async (host: string): Promise<GateConnection> =>
      await connectTo(canonicalHost(host), hosts, options.gate, calls.signal);
    const { url } = stack.use(openSocksProxy({ network, connect, onFailure }));
    const listed = listedLoopback(hosts);
    for (const endpoint of listed) stack.use(forward(endpoint, { ...options, onFailure }));
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

/** Makes an endpoint that the operator listed reachable for skopeo. A call that ends leaves the connection to the others. */
function forward(
  endpoint: LoopbackEndpoint,
  { network, gate, onFailure }: GateOptions & Pick<Parameters<typeof forwardLoopback>[2], "onFailure">,
): Disposable | null {
  const destination = { kind: "address", host: endpoint.address, port: endpoint.port } as const;
  const never = new AbortController().signal;
  return forwardLoopback(network, endpoint, {
    connect: () => gate.connect({ ...TRANSFER, destination, reach: { ...REACH, anyAddress: true } }, never),
    onFailure,
  });
}

/** @throws ApiError `forbidden` when the policy refuses the host; GateError when it is not reached */
async function connectTo(host: string, hosts: RegistryHosts, gate: Gate, signal: AbortSignal): Promise<GateConnection> {
  const reach = { ...REACH, anyAddress: isListed(host, hosts) };
  const [, name = "", port = ""] = /^(.*):(\d+)$/s.exec(host) ?? [];
  const bare = name.replace(/^\[|\]$/g, "");
  const address = isIP(bare) !== 0 ? bare : numericAddress(bare);
  const destination = {
    kind: address === null ? "name" : "address",
    host: address ?? bare,
    port: Number(port),
  } as const;
  try {
    return await gate.connect({ ...TRANSFER, destination, reach }, signal);
  } catch (error) {
    if (!(error instanceof GateError) || error.verdict !== "denied_private") throw error;
    throw new ApiError("forbidden", forbiddenAddress(host, error.addresses[0] ?? ""), { registry: host });
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
  if (error instanceof ApiError && error.code === "forbidden")
    return { host, code: "forbidden", reason: error.message };
  return { host, code: "unavailable", reason: error instanceof GateError ? error.message : "it does not answer" };
}
