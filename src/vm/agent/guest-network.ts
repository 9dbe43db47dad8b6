import ipaddr from "ipaddr.js";
import type { Destination } from "../../domain/network.ts";
import { type ConnectionLink, type GuestConnection, GuestOpenedConnection } from "./connection.ts";
import { AgentProtocolError } from "./errors.ts";
import { type Frame, packIntegers, viewOf } from "./frames.ts";
import { unexpected } from "./payload.ts";
import { AddressKind, HostFrame, NAME_BYTES_MAX, Refusal, SESSION_GUEST_BIT } from "./protocol.ts";
import type { AgentRecord, QueryRecord } from "./record.ts";
import type { FrameParts } from "./sessions.ts";

/** Limit of queries of one guest that are under way. Further ones are answered "try again". */
export const RESOLVES_COUNT_MAX = 64;
/**
 * Requests of one guest that are handled in one interval; the others wait. All guests share the daemon's thread, and a guest
 * can send tens of thousands of requests in one interval.
 */
export const REQUESTS_COUNT_MAX = 64;
/** Length of that interval, in `milliseconds`. */
const INTERVAL_MS = 20;
/** Limit of requests that wait. The sessions and queries that an honest guest can have are fewer. */
export const WAITING_COUNT_MAX = 1024;
/** Response codes of DNS in a RESOLVED. */
export const Rcode = { ok: 0, serverFailure: 2, noSuchName: 3 } as const;

const NAME_EXPRESSION = /^[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*$/;

/** A query of a program of the guest. */
export interface GuestQuery {
  /** type of the requested records, as in DNS */
  readonly type: number;
  readonly name: string;
}

/** Answers a guest's requests for connections and names. All of them may be hostile. */
export interface GuestNetwork {
  /**
   * Receives a connection, and accepts or refuses it at any time. Must not throw.
   * @param count connections of the guest that are open or being opened, by either side, with this one
   */
  open(destination: Destination, connection: GuestConnection, count: number): void;
  /** Resolves to the response code, as in DNS: 0 when the name may be used. A rejection is answered like code 2. */
  resolve(query: GuestQuery): Promise<number>;
}

/** The part of the link to a guest that `GuestRequests` uses. */
export interface RequestsLink extends ConnectionLink {
  /** Registers a session that the guest opened; false when the guest has too many connections. */
  admit(id: number, session: GuestOpenedConnection): boolean;
  /** connections that are open or being opened, by either side */
  readonly connectionsCount: number;
}

/** A request of the guest: for a connection or a name, which the network answers, or one that already has its answer. */
type GuestRequest =
  | { readonly connection: GuestOpenedConnection }
  | { readonly query: number }
  | { readonly answer: FrameParts };

/** The frames by which a guest opens connections and resolves names. */
export class GuestRequests {
  readonly #link: RequestsLink;
  /** queries that have no answer yet, by their numbers */
  readonly #queries = new Map<number, GuestQuery>();
  #network: GuestNetwork | null = null;
  #lastSession: number;
  #uninvitedCount: number;
  /** requests that wait for a later interval */
  readonly #waiting: GuestRequest[] = [];
  /** requests that can be handled before the end of the interval */
  #leftCount = REQUESTS_COUNT_MAX;
  #interval: Timer | null = null;

  /** @param from an earlier stream to continue */
  constructor(link: RequestsLink, from?: AgentRecord) {
    this.#link = link;
    this.#lastSession = from?.lastGuestSession ?? SESSION_GUEST_BIT - 1;
    this.#uninvitedCount = from?.uninvitedCount ?? 0;
  }

  /** The part of the record about the guest's requests, and the answers that wait for a later interval. */
  record(): Pick<AgentRecord, "lastGuestSession" | "uninvitedCount" | "queries"> & { answers: FrameParts[] } {
    return {
      lastGuestSession: this.#lastSession,
      uninvitedCount: this.#uninvitedCount,
      queries: [...this.#queries].map(([number, query]) => ({ number, ...query })),
      answers: this.#waiting.flatMap((request) => ("answer" in request ? [request.answer] : [])),
    };
  }

  /** Requests of the network what an earlier one has not answered. Without a network, all of it is refused. */
  resume(connections: readonly GuestOpenedConnection[], queries: readonly QueryRecord[]): void {
    for (const connection of connections) this.#handle({ connection });
    for (const { number, type, name } of queries) {
      this.#queries.set(number, { type, name });
      this.#handle({ query: number });
    }
  }

  /** Connections that the guest tried to open without a network: only a forged agent does that. */
  get uninvitedCount(): number {
    return this.#uninvitedCount;
  }

  serve(network: GuestNetwork): void {
    this.#network = network;
  }

  /** True when a session with that id was opened by the guest, even if it is over. */
  hasHad(id: number): boolean {
    return id >= SESSION_GUEST_BIT && id <= this.#lastSession;
  }

  /** Handles a NET_OPEN. @throws AgentProtocolError */
  onOpen(frame: Frame): void {
    const destination = parseDestination(frame);
    if (frame.session <= this.#lastSession) throw new AgentProtocolError("a session of the guest with a used number");
    this.#lastSession = frame.session;
    if (this.#network === null) {
      this.#uninvitedCount += 1;
      this.#handle({ answer: refusal(frame.session, Refusal.noNetwork) });
      return;
    }
    const connection = new GuestOpenedConnection(this.#link, destination);
    connection.id = frame.session;
    const isAdmitted = this.#link.admit(frame.session, connection);
    this.#handle(isAdmitted ? { connection } : { answer: refusal(frame.session, Refusal.limited) });
  }

  /** Handles a RESOLVE. @throws AgentProtocolError */
  onResolve(frame: Frame): void {
    if (frame.payload.byteLength < 2) throw unexpected(frame);
    const query = { type: viewOf(frame.payload).getUint16(0, true), name: parseName(frame.payload.subarray(2)) };
    const { session } = frame;
    if (this.#queries.has(session)) throw new AgentProtocolError("two queries with the same number");
    if (this.#network === null) this.#handle({ answer: resolved(session, Rcode.noSuchName) });
    else if (this.#queries.size >= RESOLVES_COUNT_MAX) {
      this.#handle({ answer: resolved(session, Rcode.serverFailure) });
    } else {
      this.#queries.set(session, query);
      this.#handle({ query: session });
    }
  }

  /** To be called when the link is closed: drops the requests that wait. */
  stop(): void {
    this.#waiting.length = 0;
    if (this.#interval !== null) clearInterval(this.#interval);
    this.#interval = null;
  }

  /** Handles a request now or in a later interval. @throws AgentProtocolError when too many wait */
  #handle(request: GuestRequest): void {
    this.#interval ??= setInterval(() => this.#begin(), INTERVAL_MS).unref();
    if (this.#leftCount > 0) {
      this.#leftCount -= 1;
      this.#do(request);
    } else if (this.#waiting.length < WAITING_COUNT_MAX) {
      this.#waiting.push(request);
    } else {
      throw new AgentProtocolError("more requests for connections and names than an agent can have");
    }
  }

  /** Begins an interval. */
  #begin(): void {
    const requests = this.#waiting.splice(0, REQUESTS_COUNT_MAX);
    this.#leftCount = REQUESTS_COUNT_MAX - requests.length;
    if (requests.length === 0) this.stop();
    for (const request of requests) this.#do(request);
  }

  #do(request: GuestRequest): void {
    if ("answer" in request) this.#link.post(...request.answer);
    else if ("query" in request) this.#resolve(request.query);
    else this.#open(request.connection);
  }

  #open(connection: GuestOpenedConnection): void {
    if (connection.over) return;
    if (this.#network === null) connection.refuse(Refusal.noNetwork);
    else this.#network.open(connection.destination, connection, this.#link.connectionsCount);
  }

  #resolve(number: number): void {
    const query = this.#queries.get(number);
    const settle = (rcode: number) => {
      this.#queries.delete(number);
      this.#link.post(...resolved(number, rcode));
    };
    if (query === undefined) return;
    if (this.#network === null) settle(Rcode.noSuchName);
    else this.#network.resolve(query).then(settle, () => settle(Rcode.serverFailure));
  }
}

function refusal(session: number, reason: number): FrameParts {
  return [HostFrame.netRefuse, session, packIntegers([32, reason])];
}

function resolved(query: number, rcode: number): FrameParts {
  return [HostFrame.resolved, query, packIntegers([32, rcode])];
}

/** @throws AgentProtocolError when the payload of a NET_OPEN is malformed */
function parseDestination(frame: Frame): Destination {
  if (frame.payload.byteLength < 4) throw unexpected(frame);
  const view = viewOf(frame.payload);
  const port = view.getUint16(0, true);
  const host = frame.payload.subarray(4);
  if (port === 0 || view.getUint8(3) !== 0) throw unexpected(frame);
  switch (view.getUint8(2)) {
    case AddressKind.name:
      return { kind: "name", host: parseName(host), port };
    case AddressKind.ipv4:
      if (host.byteLength !== 4) throw unexpected(frame);
      return { kind: "address", host: host.join("."), port };
    case AddressKind.ipv6:
      if (host.byteLength !== 16) throw unexpected(frame);
      return { kind: "address", host: ipaddr.fromByteArray([...host]).toString(), port };
    default:
      throw unexpected(frame);
  }
}

/** @throws AgentProtocolError when the bytes are not a name in the form of the protocol */
function parseName(bytes: Uint8Array): string {
  const name = bytes.byteLength > NAME_BYTES_MAX ? "" : Buffer.from(bytes).toString("latin1");
  if (!NAME_EXPRESSION.test(name)) throw new AgentProtocolError("a name with characters that names do not have");
  return name;
}
