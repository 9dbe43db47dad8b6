import ipaddr from "ipaddr.js";
import type { Destination } from "../../domain/network.ts";
import { type ConnectionLink, type GuestConnection, GuestOpenedConnection } from "./connection.ts";
import { AgentProtocolError } from "./errors.ts";
import { type Frame, packIntegers, viewOf } from "./frames.ts";
import { AddressKind, HostFrame, NAME_BYTES_MAX, Refusal, SESSION_GUEST_BIT } from "./protocol.ts";
import { unexpected } from "./sessions.ts";

/** Limit of queries of one guest that are under way. Further ones are told to try again. */
export const RESOLVES_COUNT_MAX = 64;
/**
 * Wishes of one guest that are handled in one interval, whose length is in `milliseconds`; the others wait. All guests share
 * the daemon's thread, and a guest can send tens of thousands in one interval.
 */
export const WISHES_COUNT_MAX = 64;
const INTERVAL_MS = 20;
/** Limit of wishes that wait. The sessions and queries that an honest guest can have are fewer. */
export const WAITING_COUNT_MAX = 1024;
/** Response codes of DNS in a RESOLVED. */
export const Rcode = { ok: 0, serverFailure: 2, noSuchName: 3 } as const;

const NAME_EXPRESSION = /^[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*$/;

/** A query of a program of the guest. */
export interface GuestQuery {
  /** type of the wanted records, as in DNS */
  readonly type: number;
  readonly name: string;
}

/** What answers the wishes of a guest for connections and names. All of them may be hostile. */
export interface GuestNetwork {
  /**
   * Takes a connection, to accept or refuse it at any time. Must not throw.
   * @param count connections of the guest that are open or being opened, by either side, with this one
   */
  open(destination: Destination, connection: GuestConnection, count: number): void;
  /** Resolves to the response code, as in DNS: 0 when the name may be used. A rejection is answered like code 2. */
  resolve(query: GuestQuery): Promise<number>;
}

/** What `GuestRequests` needs of the link to its guest. */
export interface RequestsLink extends ConnectionLink {
  /** Registers a session that the guest opened; false when the guest has too many connections. */
  admit(id: number, session: GuestOpenedConnection): boolean;
  /** connections that are open or being opened, by either side */
  readonly connectionsCount: number;
}

/** The frames by which a guest opens connections and resolves names. */
export class GuestRequests {
  readonly #link: RequestsLink;
  readonly #queries = new Set<number>();
  #network: GuestNetwork | null = null;
  #lastSession = SESSION_GUEST_BIT - 1;
  #uninvitedCount = 0;
  /** what is to be done for each wish that waits */
  readonly #waiting: (() => void)[] = [];
  /** wishes that can be handled before the end of the interval */
  #leftCount = WISHES_COUNT_MAX;
  #interval: Timer | null = null;

  constructor(link: RequestsLink) {
    this.#link = link;
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
    const refuse = (reason: number) => this.#link.post(HostFrame.netRefuse, frame.session, packIntegers([32, reason]));
    const network = this.#network;
    if (network === null) {
      this.#uninvitedCount += 1;
      this.#handle(() => refuse(Refusal.noNetwork));
      return;
    }
    const connection = new GuestOpenedConnection(this.#link);
    connection.id = frame.session;
    const isAdmitted = this.#link.admit(frame.session, connection);
    this.#handle(() => {
      if (!isAdmitted) refuse(Refusal.limited);
      else if (!connection.over) network.open(destination, connection, this.#link.connectionsCount);
    });
  }

  /** Handles a RESOLVE. @throws AgentProtocolError */
  onResolve(frame: Frame): void {
    if (frame.payload.byteLength < 2) throw unexpected(frame);
    const query = { type: viewOf(frame.payload).getUint16(0, true), name: parseName(frame.payload.subarray(2)) };
    const { session } = frame;
    if (this.#queries.has(session)) throw new AgentProtocolError("two queries with the same number");
    const network = this.#network;
    if (network === null) this.#handle(() => this.#answer(session, Rcode.noSuchName));
    else if (this.#queries.size >= RESOLVES_COUNT_MAX) this.#handle(() => this.#answer(session, Rcode.serverFailure));
    else {
      this.#queries.add(session);
      this.#handle(() => this.#resolve(session, query, network));
    }
  }

  /** To be called when the link is closed: what waits is not done any more. */
  stop(): void {
    this.#waiting.length = 0;
    if (this.#interval !== null) clearInterval(this.#interval);
    this.#interval = null;
  }

  /** Does what a wish asks for, now or in a later interval. @throws AgentProtocolError when too many wait */
  #handle(work: () => void): void {
    this.#interval ??= setInterval(() => this.#begin(), INTERVAL_MS).unref();
    if (this.#leftCount > 0) {
      this.#leftCount -= 1;
      work();
    } else if (this.#waiting.length < WAITING_COUNT_MAX) {
      this.#waiting.push(work);
    } else {
      throw new AgentProtocolError("more requests for connections and names than an agent has");
    }
  }

  /** Begins an interval. */
  #begin(): void {
    const works = this.#waiting.splice(0, WISHES_COUNT_MAX);
    this.#leftCount = WISHES_COUNT_MAX - works.length;
    if (works.length === 0) this.stop();
    for (const work of works) work();
  }

  #resolve(session: number, query: GuestQuery, network: GuestNetwork): void {
    network.resolve(query).then(
      (rcode) => this.#settle(session, rcode),
      () => this.#settle(session, Rcode.serverFailure),
    );
  }

  #settle(query: number, rcode: number): void {
    this.#queries.delete(query);
    this.#answer(query, rcode);
  }

  #answer(query: number, rcode: number): void {
    this.#link.post(HostFrame.resolved, query, packIntegers([32, rcode]));
  }
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

/** @throws AgentProtocolError when the bytes are not a name as the protocol has them */
function parseName(bytes: Uint8Array): string {
  const name = bytes.byteLength > NAME_BYTES_MAX ? "" : Buffer.from(bytes).toString("latin1");
  if (!NAME_EXPRESSION.test(name)) throw new AgentProtocolError("a name of other characters than names have");
  return name;
}
