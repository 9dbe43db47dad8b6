import type { ErrorBody } from "../domain/errors.ts";
import type { Fields, RequestHead } from "./http/head.ts";

/** A connection to a program of a guest: the part of `service/instances.ts` that an exchange uses. */
export interface GuestConnection {
  /** the guest's bytes, for one reader; throws after a reset */
  chunks(): AsyncGenerator<Uint8Array>;
  /** Resolves to true when all is sent, to false when the guest reads no more. */
  write(bytes: Uint8Array): Promise<boolean>;
  /** Ends the direction to the guest. */
  end(): Promise<void>;
  /** Ends both directions at once; may be repeated. */
  reset(): void;
}

/** A request as it arrived. */
export interface Visit {
  readonly head: RequestHead;
  /** the value of Host, in lower case */
  readonly host: string;
  /** the address of the client, or of the client of the reverse proxy in front */
  readonly address: string;
  /** whether the client speaks TLS, to this listener or to the reverse proxy in front */
  readonly isSecure: boolean;
}

/** An answer of the listener itself: a short page, or an object of JSON. */
export interface Answer {
  readonly status: number;
  /** null: there is none, for a status that has no body */
  readonly body: ErrorBody | null;
  /** further fields */
  readonly fields?: Fields;
}

/** A request that may pass. */
export interface Passage {
  /** the head for the guest, without the credentials of the ingress */
  readonly head: RequestHead;
  /** names of cookies that the guest must not set */
  readonly cookies: ReadonlySet<string>;
  /** as `Times.bodyMs`; absent: that of the listener */
  readonly bodyMs?: number;
  /**
   * Connects to the guest; disposal gives back what the connection uses. An answer takes the place of a guest.
   * @throws ApiError when there is none
   */
  connect(signal: AbortSignal): Promise<(Disposable & { readonly connection: GuestConnection }) | Answer>;
}

/** The place to which requests are passed, and the judge of which of them are. */
export interface Upstream {
  /** Decides on one request: each has a Host and credentials of its own. */
  decide(visit: Visit): Promise<Passage | Answer>;
  /** The JSON of an error that the listener answers with `status`; absent: that of the API. */
  errorJson?(body: ErrorBody, status: number): unknown;
  /** Further fields of each answer that the listener makes itself; absent: none. */
  readonly fields?: Fields;
}
