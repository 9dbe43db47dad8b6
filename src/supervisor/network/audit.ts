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
 * Of these, entries of what was not reached, which includes names that were only asked for. A guest can make up any number of
 * them, and must not hide the others so.
 */
export const UNREACHED_COUNT_MAX = 500;
/** Verdicts of connections for which no name server was asked: the question for the name is told separately. */
const UNASKED: ReadonlySet<NetworkVerdict> = new Set(["denied", "limited"]);
/** Largest number of addresses of an entry: a name with more is a service whose addresses say nothing. */
const ADDRESSES_COUNT_MAX = 8;

/** What an entry is about. */
export interface AuditKey {
  readonly host: string;
  /** null for a name that was only asked for */
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

/** Counts what an instance reached, and what it was refused. */
export class AuditRecorder {
  readonly #entries = new Map<string, Entry>();
  /** hosts of entries that tell of the question for the name, too */
  readonly #hosts = new Set<string>();
  readonly #clock: () => number;
  readonly #onFirst: (key: AuditKey) => void;
  #unreachedCount = 0;
  #truncated = false;

  /**
   * @param clock time since the epoch, in `milliseconds`
   * @param onFirst called with the first connection of each entry
   */
  constructor(clock: () => number, onFirst: (key: AuditKey) => void) {
    this.#clock = clock;
    this.#onFirst = onFirst;
  }

  /**
   * Counts a connection, or a question for a name: `allowed` without a port is a name that was asked for, and has an entry
   * until a connection to it has one. The bytes of the connection are added to the returned tally.
   */
  count({ host, port, verdict }: AuditKey, addresses: readonly string[] = []): Tally {
    const id = idOf({ host, port, verdict });
    const now = this.#clock();
    const known = this.#entries.get(id);
    const entry = known ?? {
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
    if (known !== undefined) return entry;
    const isQuestion = verdict === "allowed" && port === null;
    if (isQuestion && this.#hosts.has(host)) return entry;
    const isAsked = port !== null && !UNASKED.has(verdict);
    // Its place is free for the new entry, so the name is never lost.
    if (isAsked && this.#entries.delete(idOf({ host, port: null, verdict: "allowed" }))) this.#unreachedCount -= 1;
    const isUnreached = verdict !== "allowed" || isQuestion;
    if (this.#entries.size >= ENTRIES_COUNT_MAX || (isUnreached && this.#unreachedCount >= UNREACHED_COUNT_MAX)) {
      this.#truncated = true;
      return entry;
    }
    if (isUnreached) this.#unreachedCount += 1;
    if (isAsked) this.#hosts.add(host);
    this.#entries.set(id, entry);
    this.#onFirst({ host, port, verdict });
    return entry;
  }

  /** Records that bytes of a tally passed now. */
  touch(tally: Tally): void {
    tally.lastAt = this.#clock();
  }

  /** The entries in the order of their first connections. @param withPolicy adds the rules that allow what was reached */
  audit(withPolicy: boolean): NetworkAudit {
    const entries = [...this.#entries.values()].map(wireEntry);
    return { entries, truncated: this.#truncated, ...(withPolicy ? { policy: policyOf(entries) } : {}) };
  }
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

/** Rules that allow exactly what was connected to, sorted by host. */
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
