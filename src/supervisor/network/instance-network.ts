import type { Destination, NetworkAudit, NetworkRequest, NetworkVerdict } from "../../domain/network.ts";
import { type Gate, type GateConnection, GateError } from "../../network/gate.ts";
import { withinTime } from "../../system/waiting.ts";
import type { GuestConnection } from "../../vm/agent/connection.ts";
import { type GuestNetwork, type GuestQuery, Rcode } from "../../vm/agent/guest-network.ts";
import { Refusal } from "../../vm/agent/protocol.ts";
import { type AuditKey, AuditRecorder, type Tally } from "./audit.ts";
import { NetworkJudge, type OperatorRules } from "./judge.ts";
import { relay } from "./relay.ts";
import { TokenBucket } from "./token-bucket.ts";

/** Opens and questions that may come at once, as a multiple of those of a second. */
const BURST_SECONDS = 4;
/** How long it is known that a name exists, or that it does not. */
const NAME_MS = 60_000;
const MISSING_NAME_MS = 5000;
/** Largest number of names whose answers are kept. */
const NAMES_COUNT_MAX = 1024;

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
  /** connections and questions of an instance in a second */
  readonly opensPerSecond: number;
  /** bytes of an instance in both directions; null: no limit */
  readonly bytesMax: number | null;
  /** time without a byte after which a connection is reset, in `milliseconds` */
  readonly idleMs: number;
}

/** Told what happens in a network. */
export interface NetworkListener {
  /** a connection, or a question for a name, ended with a verdict or was allowed */
  readonly counted: (verdict: NetworkVerdict) => void;
  /** the first connection to a port of a host with this verdict, or the first question for a name */
  readonly first: (key: AuditKey) => void;
  readonly moved: (direction: "sent" | "received", bytes: number) => void;
  /** an outer connection was opened (1) or is over (-1) */
  readonly open: (change: 1 | -1) => void;
  /** the gate failed for a reason of its own */
  readonly failed: (error: unknown) => void;
}

export interface InstanceNetworkOptions {
  readonly gate: Pick<Gate, "connect" | "resolve">;
  readonly settings: NetworkSettings;
  readonly request: NetworkRequest;
  /** the account of the instance */
  readonly account: string;
  readonly listener: NetworkListener;
  /** time since the epoch, in `milliseconds` */
  readonly clock: () => number;
  /** monotonic, in `milliseconds` */
  readonly now?: () => number;
}

interface KnownName {
  readonly exists: Promise<boolean>;
  readonly until: number;
}

/**
 * The network of one instance, for all machines that it has one after another. Whatever a guest wishes is first judged by
 * the rules, then by the limits, and only then passed to the gate. Disposal resets all connections and waits for their end;
 * it may be repeated.
 */
export class InstanceNetwork implements GuestNetwork, AsyncDisposable {
  readonly #options: InstanceNetworkOptions;
  readonly #judge: NetworkJudge;
  readonly #audit: AuditRecorder;
  readonly #bucket: TokenBucket;
  readonly #now: () => number;
  readonly #over = new AbortController();
  /** connections that are being opened or are open, with their ends */
  readonly #running = new Map<GuestConnection, Promise<void>>();
  /** ends of connections that are open */
  readonly #open = new Set<Promise<void>>();
  readonly #names = new Map<string, KnownName>();
  #movedBytes = 0;

  constructor(options: InstanceNetworkOptions) {
    const { settings, request, clock, listener, now = () => performance.now() } = options;
    this.#options = options;
    this.#now = now;
    this.#judge = new NetworkJudge(settings, request);
    this.#audit = new AuditRecorder(clock, listener.first);
    const perSecond = settings.opensPerSecond;
    this.#bucket = new TokenBucket({ perSecond, burst: BURST_SECONDS * perSecond, now });
  }

  /** What was reached and refused until now. */
  audit(): NetworkAudit {
    return this.#audit.audit(this.#options.request.record);
  }

  open(destination: Destination, connection: GuestConnection, count: number): void {
    if (this.#over.signal.aborted) {
      connection.refuse(Refusal.noNetwork);
      return;
    }
    if (!this.#judge.allows(destination)) {
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
    const run = this.#connect(destination, connection).finally(() => this.#running.delete(connection));
    this.#running.set(connection, run);
  }

  async resolve({ name }: GuestQuery): Promise<number> {
    const count = (verdict: FailedVerdict) => void this.#count({ host: name, port: null, verdict });
    if (this.#over.signal.aborted) return Rcode.serverFailure;
    if (!this.#judge.allowsName(name)) {
      count("denied");
      return Rcode.noSuchName;
    }
    try {
      const known = this.#known(name);
      if (known === null) {
        count("limited");
        return Rcode.serverFailure;
      }
      if (await known) return Rcode.ok;
      count("no_such_name");
      return Rcode.noSuchName;
    } catch (error) {
      if (!this.#over.signal.aborted) count(this.#failureOf(error).verdict);
      return Rcode.serverFailure;
    }
  }

  /**
   * Waits until open connections have ended, or so many `milliseconds` have passed. After the end of the guest's programs,
   * what they have sent may still be on its way.
   */
  async drain(limitMs: number): Promise<void> {
    if (this.#open.size > 0) await withinTime(Promise.all(this.#open), limitMs, () => undefined);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#over.abort();
    for (const connection of this.#running.keys()) connection.reset();
    await Promise.all(this.#running.values());
  }

  /** Whether the name exists, as far as that is known or may be asked; null when it was asked too often. */
  #known(name: string): Promise<boolean> | null {
    const known = this.#names.get(name);
    if (known !== undefined && known.until > this.#now()) return known.exists;
    if (!this.#bucket.take()) return null;
    const named = this.#judge.isNamed({ kind: "name", host: name });
    const exists = this.#options.gate.resolve(name, this.#over.signal, {
      named,
      account: this.#options.account,
    });
    this.#know(name, { exists, until: this.#now() + NAME_MS });
    exists.then(
      (found) => {
        if (!found) this.#know(name, { exists, until: this.#now() + MISSING_NAME_MS });
      },
      // Only answers are kept.
      () => this.#names.delete(name),
    );
    return exists;
  }

  #know(name: string, known: KnownName): void {
    this.#names.delete(name);
    const [oldest] = this.#names.keys();
    if (oldest !== undefined && this.#names.size >= NAMES_COUNT_MAX) this.#names.delete(oldest);
    this.#names.set(name, known);
  }

  /** True when no byte may be moved any more. */
  get #isSpent(): boolean {
    const { bytesMax } = this.#options.settings;
    return bytesMax !== null && this.#movedBytes >= bytesMax;
  }

  async #connect(destination: Destination, connection: GuestConnection): Promise<void> {
    const { gate, settings, listener, account } = this.#options;
    const serverName = this.#judge.serverName(destination);
    const request = {
      account,
      destination,
      reach: this.#judge.reach(destination),
      serverName,
      idleMs: settings.idleMs,
    };
    let outer: GateConnection;
    try {
      outer = await gate.connect(request, connection.signal);
    } catch (error) {
      // The guest gave up, or the instance ends.
      if (connection.signal.aborted) return;
      const { verdict, addresses } = this.#failureOf(error);
      this.#refuse(destination, connection, verdict, addresses);
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

  /** @param isPinned the verdict is known when the server has answered */
  async #relay(
    destination: Destination,
    ends: { readonly guest: GuestConnection; readonly outer: GateConnection },
    isPinned: boolean,
  ): Promise<void> {
    const { host, port } = destination;
    const early: Tally = { sentBytes: 0, receivedBytes: 0, lastAt: 0 };
    let tally: Tally | null = null;
    const settle = (verdict: NetworkVerdict): Tally => {
      if (tally !== null) return tally;
      tally = this.#count({ host, port, verdict }, [ends.outer.address]);
      tally.sentBytes += early.sentBytes;
      return tally;
    };
    if (!isPinned) settle("allowed");
    let isCut = false;
    const end = await relay(
      ends,
      {
        sent: (bytes) => {
          isCut ||= !this.#mayMove("sent", bytes);
          if (isCut) return false;
          const to = tally ?? early;
          to.sentBytes += bytes;
          this.#audit.touch(to);
          return true;
        },
        received: (bytes) => {
          isCut ||= !this.#mayMove("received", bytes);
          if (isCut) return false;
          const to = settle("allowed");
          to.receivedBytes += bytes;
          this.#audit.touch(to);
          return true;
        },
      },
      this.#over.signal,
    );
    // A server that spoke before the client did is both.
    if (end === "denied_sni" && tally !== null) this.#count({ host, port, verdict: end });
    settle(end === "denied_sni" ? end : "allowed");
    if (isCut) this.#count({ host, port, verdict: "limited" });
  }

  #mayMove(direction: "sent" | "received", bytes: number): boolean {
    const { settings, listener } = this.#options;
    this.#movedBytes += bytes;
    if (settings.bytesMax !== null && this.#movedBytes > settings.bytesMax) return false;
    listener.moved(direction, bytes);
    return true;
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

  #count(key: AuditKey, addresses: readonly string[] = []): Tally {
    this.#options.listener.counted(key.verdict);
    return this.#audit.count(key, addresses);
  }

  #failureOf(error: unknown): { readonly verdict: FailedVerdict; readonly addresses: readonly string[] } {
    if (error instanceof GateError) return error;
    this.#options.listener.failed(error);
    return { verdict: "unreachable", addresses: [] };
  }
}
