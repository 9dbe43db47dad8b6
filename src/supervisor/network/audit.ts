import {
  NETWORK_PORTS_COUNT_MAX,
  type NetworkAudit,
  type NetworkEntry,
  type NetworkRule,
  type NetworkVerdict,
} from "../../domain/network.ts";

/** Largest number of entries of an audit. */
export const ENTRIES_COUNT_MAX = 1000;
/**
 * Largest number of them for hosts that were not reached, including names that were only looked up. A guest can invent any
 * number of names, which must not hide the other entries.
 */
export const UNREACHED_COUNT_MAX = 500;
/** Verdicts of connections that caused no lookup of their own: the lookup of the name has its own entry. */
const UNASKED: ReadonlySet<NetworkVerdict> = new Set(["denied", "limited"]);
/** Largest number of addresses of an entry: a name with more is a service whose addresses say nothing. */
const ADDRESSES_COUNT_MAX = 8;

/** The host, port and verdict that an entry counts. */
export interface AuditKey {
  readonly host: string;
  /** null for a name that was only looked up */
  readonly port: number | null;
  readonly verdict: NetworkVerdict;
}

/** Bytes of connections with one verdict. */
export interface Tally {
  sentBytes: number;
  receivedBytes: number;
  lastAt: number;
}

interface Entry extends AuditKey, Tally {
  connections: number;
  readonly firstAt: number;
  readonly addresses: Set<string>;
}

/** The entries of an audit as plain data, in the order of their first connections. Times in `milliseconds` since the epoch. */
export interface AuditRecord {
  readonly entries: readonly (Readonly<Omit<Entry, "addresses">> & { readonly addresses: readonly string[] })[];
  readonly isTruncated: boolean;
}

/** Counts the connections and lookups of an instance, allowed and refused. */
export class AuditRecorder {
  readonly #entries = new Map<string, Entry>();
  /** hosts of entries that also count the lookup of the name */
  readonly #hosts = new Set<string>();
  readonly #clock: () => number;
  readonly #onFirst: (key: AuditKey) => void;
  #unreachedCount = 0;
  #truncated: boolean;

  /**
   * @param clock time since the epoch, in `milliseconds`
   * @param onFirst called with the first connection of each entry
   * @param from an audit to continue
   */
  constructor(clock: () => number, onFirst: (key: AuditKey) => void, from?: AuditRecord) {
    this.#clock = clock;
    this.#onFirst = onFirst;
    this.#truncated = from?.isTruncated === true;
    for (const { addresses, ...entry } of from?.entries ?? []) {
      if (isUnreached(entry)) this.#unreachedCount += 1;
      if (hasLookup(entry)) this.#hosts.add(entry.host);
      this.#entries.set(idOf(entry), { ...entry, addresses: new Set(addresses) });
    }
  }

  record(): AuditRecord {
    const entries = [...this.#entries.values()].map(({ addresses, ...entry }) => ({
      ...entry,
      addresses: [...addresses],
    }));
    return { entries, isTruncated: this.#truncated };
  }

  /**
   * Counts a connection or a lookup. `allowed` without a port is a name that was looked up. It has an entry
   * until a connection to that name has one. The bytes of the connection are added to the returned tally.
   */
  count({ host, port, verdict }: AuditKey, addresses: readonly string[] = []): Tally {
    const id = idOf({ host, port, verdict });
    const now = this.#clock();
    const previous = this.#entries.get(id);
    const entry = previous ?? {
      host,
      port,
      verdict,
      connections: 0,
      sentBytes: 0,
      receivedBytes: 0,
      firstAt: now,
      lastAt: now,
      addresses: new Set<string>(),
    };
    entry.connections += 1;
    entry.lastAt = now;
    for (const address of addresses) if (entry.addresses.size < ADDRESSES_COUNT_MAX) entry.addresses.add(address);
    if (previous !== undefined) return entry;
    if (isLookup(entry) && this.#hosts.has(host)) return entry;
    // The lookup's place is free for the new entry, so the name is never lost.
    if (hasLookup(entry) && this.#entries.delete(idOf({ host, port: null, verdict: "allowed" })))
      this.#unreachedCount -= 1;
    const isHidden = isUnreached(entry) && this.#unreachedCount >= UNREACHED_COUNT_MAX;
    if (this.#entries.size >= ENTRIES_COUNT_MAX || isHidden) {
      this.#truncated = true;
      return entry;
    }
    if (isUnreached(entry)) this.#unreachedCount += 1;
    if (hasLookup(entry)) this.#hosts.add(host);
    this.#entries.set(id, entry);
    this.#onFirst({ host, port, verdict });
    return entry;
  }

  /** Records that bytes of a tally passed now. */
  touch(tally: Tally): void {
    tally.lastAt = this.#clock();
  }

  /** The entries in the order of their first connections. @param withPolicy adds rules that allow the reached hosts */
  audit(withPolicy: boolean): NetworkAudit {
    const entries = [...this.#entries.values()].map(wireEntry);
    return { entries, truncated: this.#truncated, ...(withPolicy ? { policy: policyOf(entries) } : {}) };
  }
}

/** True for an entry of a name that was only looked up. */
function isLookup({ port, verdict }: AuditKey): boolean {
  return verdict === "allowed" && port === null;
}

/** True for an entry that also counts the lookup of the name. */
function hasLookup({ port, verdict }: AuditKey): boolean {
  return port !== null && !UNASKED.has(verdict);
}

function isUnreached(key: AuditKey): boolean {
  return key.verdict !== "allowed" || isLookup(key);
}

function idOf({ host, port, verdict }: AuditKey): string {
  return `${verdict} ${port} ${host}`;
}

function wireEntry(entry: Entry): NetworkEntry {
  return {
    host: entry.host,
    port: entry.port,
    verdict: entry.verdict,
    connections: entry.connections,
    bytes_sent: entry.sentBytes,
    bytes_received: entry.receivedBytes,
    first_at: new Date(entry.firstAt).toISOString(),
    last_at: new Date(entry.lastAt).toISOString(),
    addresses: [...entry.addresses],
  };
}

/** Rules that allow exactly the hosts and ports that were connected to, sorted by host. */
function policyOf(entries: readonly NetworkEntry[]): NetworkRule[] {
  const ports = new Map<string, number[]>();
  for (const { host, port, verdict } of entries) {
    if (verdict === "allowed" && port !== null) ports.set(host, [...(ports.get(host) ?? []), port]);
  }
  return [...ports.keys()].sort().flatMap((host) => {
    const sorted = (ports.get(host) ?? []).sort((a, b) => a - b);
    const rules: NetworkRule[] = [];
    for (let at = 0; at < sorted.length; at += NETWORK_PORTS_COUNT_MAX) {
      rules.push({ host, ports: sorted.slice(at, at + NETWORK_PORTS_COUNT_MAX) });
    }
    return rules;
  });
}
