import type { Destination, NetworkVerdict } from "../domain/network.ts";

/**
 * The daemon's view of the unprivileged process that connects to the outside for guests and tools. The daemon applies the
 * rules before it sends a request; the process resolves names, judges every address, pins the names of TLS servers, and relays.
 */
export interface Gate extends AsyncDisposable {
  /**
   * Connects to a destination that the rules allow.
   * @throws GateError when there is no connection
   * @throws the signal's reason on abort
   */
  connect(request: GateRequest, signal: AbortSignal): Promise<GateConnection>;
  /**
   * Whether a name has an address of any kind. Behind a site's proxy, which resolves names itself, every name has.
   * @throws GateError `timed_out` or `unreachable` when no name server answers
   * @throws the signal's reason on abort
   */
  resolve(name: string, signal: AbortSignal, options?: LookupOptions): Promise<boolean>;
  /**
   * The addresses of a name, which are not judged; null behind a site's proxy, which resolves names itself.
   * @throws GateError `no_such_name`, and as `resolve`
   */
  lookup(name: string, signal: AbortSignal, options?: LookupOptions): Promise<readonly string[] | null>;
  /** Resident memory of the process while it runs, in `bytes`; otherwise 0. */
  residentBytes(): number;
}

export interface LookupOptions {
  /** true for a name that the operator wrote in the settings: it may be in this host's /etc/hosts; default: false */
  readonly named?: boolean;
  /** as in a `GateRequest`; default: null */
  readonly account?: string | null;
}

/** Which addresses beyond the public ones a request may reach. */
export interface AddressReach {
  /**
   * `all-not-public`: nothing but public addresses. `registry`: private addresses, too, and never this machine's loopback,
   * link-local addresses, and services of its cloud.
   */
  readonly forbidden: "all-not-public" | "registry";
  /** addresses and CIDRs that the operator excepts */
  readonly except: readonly string[];
  /** true when the operator named the host: any address will do, and the name may be in this host's /etc/hosts */
  readonly anyAddress: boolean;
  /** what the request itself denies, which nothing above excepts; absent: nothing */
  readonly denied?: DeniedRanges;
}

/** Addresses and CIDRs that a request denies. An address that leads to one of them is denied, too. */
export interface DeniedRanges {
  readonly ranges: readonly string[];
  /** addresses and CIDRs that its rules permit all the same */
  readonly except: readonly string[];
}

export interface GateRequest {
  /** whose share of all connections it takes; null for the daemon's own tools */
  readonly account: string | null;
  readonly destination: Destination;
  readonly reach: AddressReach;
  /** the name that the client's TLS must ask for; null for any bytes */
  readonly serverName: string | null;
  /** the connection is reset after this time without a byte in either direction, in `milliseconds` */
  readonly idleMs: number;
}

/** Why there is no connection; `limited`: there are too many. */
export type GateVerdict = Exclude<NetworkVerdict, "allowed" | "denied_sni">;

/** There is no connection. The message ends a sentence "HOST cannot be reached: …", and names no secret. */
export class GateError extends Error {
  override readonly name = "GateError";
  readonly verdict: GateVerdict;
  /** addresses that were tried or refused, the last one last */
  readonly addresses: readonly string[];

  constructor(verdict: GateVerdict, message: string, addresses: readonly string[] = []) {
    super(message);
    this.verdict = verdict;
    this.addresses = addresses;
  }
}

/** How a connection ended: `lost` when the process that made it is gone. */
export type GateEnd = "ended" | "reset" | "denied_sni" | "idle" | "lost";

/** A connection to the outside. Its reader and its writer each wait for the other side. */
export interface GateConnection {
  /** the address that was connected to; the proxy's when the site's proxy made the connection */
  readonly address: string;
  /** true when the site's proxy made the connection, so that the address of the destination is not known */
  readonly isProxied: boolean;
  /** Bytes from outside, until its end of sending or the end of the connection. To be called once. */
  chunks(): AsyncIterable<Uint8Array>;
  /** Sends bytes; resolves when more may be written. Bytes are dropped after the connection's end. */
  write(bytes: Uint8Array): Promise<void>;
  /** Ends the direction to the outside. */
  end(): void;
  /** Ends both directions at once. */
  reset(): void;
  /** how it ended: `ended` when both sides have ended their sending */
  readonly ended: Promise<GateEnd>;
}
