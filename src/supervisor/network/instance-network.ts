import { ApiError } from "../../domain/errors.ts";
import type { Destination, NetworkAudit, NetworkRequest, NetworkVerdict } from "../../domain/network.ts";
import { type Gate, type GateConnection, GateError, type GateRequest } from "../../network/gate.ts";
import { withinTime } from "../../system/waiting.ts";
import type { GuestConnection } from "../../vm/agent/connection.ts";
import { type GuestNetwork, type GuestQuery, Rcode } from "../../vm/agent/guest-network.ts";
import { Refusal } from "../../vm/agent/protocol.ts";
import { type AuditKey, type AuditRecord, AuditRecorder, type Tally } from "./audit.ts";
import { type JudgedConnection, NetworkJudge, type OperatorRules } from "./judge.ts";
import { NameCache } from "./name-cache.ts";
import { type PoliciesRecord, type PolicyChange, PolicyHistory } from "./policies.ts";
import { relay } from "./relay.ts";
import { TokenBucket } from "./token-bucket.ts";

/** Connections and lookups that may come at once, as a multiple of those of a second. */
const BURST_SECONDS = 4;
const REFUSALS: Readonly<Record<Exclude<NetworkVerdict, "allowed" | "denied_sni">, number>> = {
  denied: Refusal.denied,
  denied_private: Refusal.denied,
  no_such_name: Refusal.nameGone,
  refused: Refusal.refused,
  unreachable: Refusal.unreachable,
  timed_out: Refusal.timedOut,
  limited: Refusal.limited,
};
type FailedVerdict = keyof typeof REFUSALS;

/** The operator's settings for the networks of instances. */
export interface NetworkSettings extends OperatorRules {
  /** connections of an instance at the same time, with those to its ports */
  readonly connectionsMax: number;
  /** connections and lookups of an instance in a second */
  readonly opensPerSecond: number;
  /** bytes of an instance in both directions; null: no limit */
  readonly bytesMax: number | null;
  /** time without a byte after which a connection is reset, in `milliseconds` */
  readonly idleMs: number;
}

/** Receives the events of a network. */
export interface NetworkListener {
  /** a connection, or a failed lookup, got its verdict */
  readonly counted: (verdict: NetworkVerdict) => void;
  /** the first connection to a port of a host with this verdict, or the first lookup of a name */
  readonly first: (key: AuditKey) => void;
  /** the network changed; the refusals of the connections that ended with it follow */
  readonly changed: (change: PolicyChange) => void;
  readonly moved: (direction: "sent" | "received", bytes: number) => void;
  /** an outer connection was opened (1) or is over (-1) */
  readonly open: (change: 1 | -1) => void;
  /** the gate failed for a reason of its own */
  readonly failed: (error: unknown) => void;
}

/** The network of an instance as plain data, without its connections. */
export interface NetworkRecord {
  /** null: none */
  readonly policy: NetworkRequest | null;
  readonly wasOn: boolean;
  readonly wasRecorded: boolean;
  /** bytes that count against the limit */
  readonly movedBytes: number;
  readonly audit: AuditRecord;
  readonly policies: PoliciesRecord;
}

export interface InstanceNetworkOptions {
  readonly gate: Pick<Gate, "connect" | "resolve">;
  readonly settings: NetworkSettings;
  /** the network at first; null: none */
  readonly policy: NetworkRequest | null;
  /** a network to continue, instead of `policy` */
  readonly from?: NetworkRecord;
  /** the account of the instance */
  readonly account: string;
  readonly listener: NetworkListener;
  /** time since the epoch, in `milliseconds` */
  readonly clock: () => number;
  /** monotonic, in `milliseconds` */
  readonly now?: () => number;
}

interface Running extends JudgedConnection {
  readonly ended: Promise<void>;
}

/**
 * The network of one instance, for all machines that it has one after another; an instance without one has a policy of null.
 * Each request of a guest is first checked against the rules, then against the limits, and only then passed to the gate.
 * Disposal resets all connections and waits for their end. It may be repeated.
 */
export class InstanceNetwork implements GuestNetwork, AsyncDisposable {
  readonly #options: InstanceNetworkOptions;
  readonly #audit: AuditRecorder;
  readonly #bucket: TokenBucket;
  readonly #over = new AbortController();
  readonly #running = new Map<GuestConnection, Running>();
  /** ends of connections that are open */
  readonly #open = new Set<Promise<void>>();
  readonly #names: NameCache;
  /** lookups that were passed to the gate or the cache, and are not counted yet */
  readonly #queries = new Set<GuestQuery>();
  readonly #policies: PolicyHistory;
  #policy: NetworkRequest | null;
  #judge: NetworkJudge | null;
  /** true when the instance has had a network */
  #wasOn: boolean;
  /** true when a policy of the instance was to be recorded */
  #wasRecorded: boolean;
  #movedBytes: number;

  constructor(options: InstanceNetworkOptions) {
    const {
      settings,
      from,
      policy = null,
      clock,
      listener,
      now = () => performance.now(),
    } = { ...options, ...options.from };
    this.#options = options;
    this.#policy = policy;
    this.#judge = policy === null ? null : new NetworkJudge(settings, policy);
    this.#wasOn = from?.wasOn ?? policy !== null;
    this.#wasRecorded = from?.wasRecorded ?? policy?.record === true;
    this.#movedBytes = from?.movedBytes ?? 0;
    this.#policies = from === undefined ? PolicyHistory.begin(policy, clock()) : PolicyHistory.resume(from.policies);
    this.#audit = new AuditRecorder(clock, listener.first, from?.audit);
    const perSecond = settings.opensPerSecond;
    this.#bucket = new TokenBucket({ perSecond, burst: BURST_SECONDS * perSecond, now });
    this.#names = new NameCache({ ...options, bucket: this.#bucket, now, signal: this.#over.signal });
  }

  /** The present network; null: none. */
  get policy(): NetworkRequest | null {
    return this.#policy;
  }

  /** True when the instance has a network or has had one. */
  get wasOn(): boolean {
    return this.#wasOn;
  }

  /** Connections and bytes that are counted later are not in it. */
  record(): NetworkRecord {
    return {
      policy: this.#policy,
      wasOn: this.#wasOn,
      wasRecorded: this.#wasRecorded,
      movedBytes: this.#movedBytes,
      audit: this.#audit.record(),
      policies: this.#policies.record(),
    };
  }

  /** The connections and lookups until now; null when the instance has had no network. */
  audit(): NetworkAudit | null {
    if (!this.#wasOn) return null;
    const { entries, truncated, ...policy } = this.#audit.audit(this.#wasRecorded);
    if (!this.#policies.hasChanged) return { entries, truncated, ...policy };
    const { periods: policies, isTruncated } = this.#policies;
    return { entries, truncated: truncated || isTruncated, ...policy, policies };
  }

  /**
   * Replaces the network. The new one is in force at once: it judges every later connection and lookup, and connections that
   * it does not permit, by the names and addresses for which they were opened, are reset. A connection to a port that now
   * accepts only TLS is one of them when its own TLS was not judged.
   * @throws ApiError `conflict` when it has changed too often
   */
  change(policy: NetworkRequest | null): void {
    const { settings, clock, listener } = this.#options;
    if (this.#policies.isFull) throw new ApiError("conflict", "the network of the instance has changed too often");
    const judge = policy === null ? null : new NetworkJudge(settings, policy);
    this.#policy = policy;
    this.#judge = judge;
    this.#wasOn ||= policy !== null;
    this.#wasRecorded ||= policy?.record === true;
    const forbidden = [...this.#running].filter(([, connection]) => judge?.keeps(connection) !== true);
    listener.changed(this.#policies.add(policy, clock(), forbidden.length));
    for (const [connection, { destination }] of forbidden) {
      this.#count({ host: destination.host, port: destination.port, verdict: "denied" });
      connection.reset();
    }
  }

  open(destination: Destination, connection: GuestConnection, count: number): void {
    if (this.#over.signal.aborted) {
      connection.refuse(Refusal.noNetwork);
      return;
    }
    const judge = this.#judge;
    if (judge === null) {
      // It was opened before the guest's agent lost the network.
      this.#count({ host: destination.host, port: destination.port, verdict: "denied" });
      connection.refuse(Refusal.noNetwork);
      return;
    }
    if (!judge.allows(destination)) {
      this.#refuse(destination, connection, "denied");
      return;
    }
    if (this.#isSpent) {
      // A program must not wait, as it does after the refusal for the other limits.
      this.#count({ ...destination, verdict: "limited" });
      connection.refuse(Refusal.denied);
      return;
    }
    if (count > this.#options.settings.connectionsMax || !this.#bucket.take()) {
      this.#refuse(destination, connection, "limited");
      return;
    }
    const serverName = judge.serverName(destination);
    const request = { destination, reach: judge.reach(destination), serverName };
    const ended = this.#connect(request, connection).finally(() => this.#running.delete(connection));
    this.#running.set(connection, { destination, serverName, ended });
  }

  async resolve(query: GuestQuery): Promise<number> {
    const { name } = query;
    const refuse = (verdict: FailedVerdict) => void this.#count({ host: name, port: null, verdict });
    if (this.#over.signal.aborted) return Rcode.serverFailure;
    const judge = this.#judge;
    if (judge?.allowsName(name) !== true) {
      refuse("denied");
      return Rcode.noSuchName;
    }
    try {
      const answer = this.#names.exists(name, judge.isNamed({ kind: "name", host: name }));
      if (answer === null) {
        refuse("limited");
        return Rcode.serverFailure;
      }
      this.#queries.add(query);
      const exists = await answer;
      this.#countQuery(query, exists ? "allowed" : "no_such_name");
      // The network may have changed meanwhile.
      return exists && this.#judge?.allowsName(name) === true ? Rcode.ok : Rcode.noSuchName;
    } catch (error) {
      if (!this.#over.signal.aborted) this.#countQuery(query, this.#failureOf(error).verdict);
      return Rcode.serverFailure;
    }
  }

  /**
   * Waits until open connections have ended, or so many `milliseconds` have passed. When the guest's programs have ended,
   * bytes that they have sent may still be in transit.
   */
  async drain(limitMs: number): Promise<void> {
    if (this.#open.size > 0) await withinTime(Promise.all(this.#open), limitMs, () => undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort();
    // A name server may have been asked.
    for (const query of this.#queries) this.#countQuery(query, "allowed");
    for (const connection of this.#running.keys()) connection.reset();
    await Promise.all([...this.#running.values()].map(({ ended }) => ended));
  }

  /** True when no further byte may be moved. */
  get #isSpent(): boolean {
    const { bytesMax } = this.#options.settings;
    return bytesMax !== null && this.#movedBytes >= bytesMax;
  }

  async #connect(
    request: Pick<GateRequest, "destination" | "reach" | "serverName">,
    connection: GuestConnection,
  ): Promise<void> {
    const { gate, settings, listener, account } = this.#options;
    const { destination, serverName } = request;
    let outer: GateConnection;
    try {
      outer = await gate.connect({ account, ...request, idleMs: settings.idleMs }, connection.signal);
    } catch (error) {
      if (connection.signal.aborted) {
        // The guest gave up, or lost its network, or the instance ended, but the destination may already have been reached.
        this.#count({ host: destination.host, port: destination.port, verdict: "allowed" });
        return;
      }
      const { verdict, addresses } = this.#failureOf(error);
      this.#refuse(destination, connection, verdict, addresses);
      return;
    }
    const running = this.#running.get(connection) as Running;
    running.address = outer.isProxied ? null : outer.address;
    if (!connection.signal.aborted && this.#judge?.keeps(running) === false) {
      // The network has changed meanwhile.
      outer.reset();
      this.#refuse(destination, connection, "denied", [outer.address]);
      return;
    }
    listener.open(1);
    connection.accept();
    const relayed = this.#relay(destination, { guest: connection, outer }, serverName !== null);
    this.#open.add(relayed);
    await relayed;
    this.#open.delete(relayed);
    listener.open(-1);
  }

  /** @param isPinned the gate holds the guest's bytes until it has judged their TLS name; then the server's bytes arrive */
  async #relay(
    destination: Destination,
    ends: { readonly guest: GuestConnection; readonly outer: GateConnection },
    isPinned: boolean,
  ): Promise<void> {
    const key = { host: destination.host, port: destination.port };
    const addresses = [ends.outer.address];
    let sentBytes = 0;
    /** sent bytes that are counted with the connection */
    let heldBytes = 0;
    let tally: Tally | null = null;
    const settle = (): Tally => {
      if (tally !== null) return tally;
      tally = this.#count({ ...key, verdict: "allowed" }, addresses);
      if (heldBytes > 0) this.#passed(tally, "sent", heldBytes);
      return tally;
    };
    if (!isPinned) settle();
    let isCut = false;
    const end = await relay(
      ends,
      {
        sent: (bytes) => {
          isCut ||= !this.#mayMove(bytes);
          if (isCut) return false;
          sentBytes += bytes;
          if (tally === null) heldBytes += bytes;
          else this.#passed(tally, "sent", bytes);
          return true;
        },
        received: (bytes) => {
          isCut ||= !this.#mayMove(bytes);
          if (isCut) return false;
          this.#passed(settle(), "received", bytes);
          return true;
        },
      },
      this.#over.signal,
    );
    if (end === "denied_sni") {
      // None of its bytes left the host, even when the server sent first.
      this.#movedBytes -= sentBytes;
      if (tally !== null) (tally as Tally).sentBytes -= sentBytes - heldBytes;
      this.#count({ ...key, verdict: end }, addresses);
    } else settle();
    if (isCut) this.#count({ ...key, verdict: "limited" });
  }

  /** Counts bytes against the limit; false when they exceed it. */
  #mayMove(bytes: number): boolean {
    const { bytesMax } = this.#options.settings;
    this.#movedBytes += bytes;
    return bytesMax === null || this.#movedBytes <= bytesMax;
  }

  #passed(tally: Tally, direction: "sent" | "received", bytes: number): void {
    tally[`${direction}Bytes`] += bytes;
    this.#audit.touch(tally);
    this.#options.listener.moved(direction, bytes);
  }

  #refuse(
    { host, port }: Destination,
    connection: GuestConnection,
    verdict: FailedVerdict,
    addresses: readonly string[] = [],
  ): void {
    this.#count({ host, port, verdict }, addresses);
    connection.refuse(REFUSALS[verdict]);
  }

  /** Counts a lookup once: at its answer or at the end of the instance. */
  #countQuery(query: GuestQuery, verdict: FailedVerdict | "allowed"): void {
    if (this.#queries.delete(query)) this.#count({ host: query.name, port: null, verdict });
  }

  #count(key: AuditKey, addresses: readonly string[] = []): Tally {
    // The metric counts connections, and names that were refused.
    if (key.port !== null || key.verdict !== "allowed") this.#options.listener.counted(key.verdict);
    return this.#audit.count(key, addresses);
  }

  #failureOf(error: unknown): { readonly verdict: FailedVerdict; readonly addresses: readonly string[] } {
    if (error instanceof GateError) return error;
    this.#options.listener.failed(error);
    return { verdict: "unreachable", addresses: [] };
  }
}
