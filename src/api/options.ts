import type { Accounts } from "../domain/account/accounts.ts";
import type { Log } from "../log.ts";
import type { Metrics } from "../metrics.ts";
import type { Principal } from "../service/parts.ts";
import type { Service } from "../service/service.ts";
import type { SessionUseCases } from "../service/sessions.ts";

/** Dependencies of the HTTP API. */
export interface ApiOptions {
  readonly service: Service;
  readonly accounts: Accounts;
  /** Returns null when the token is malformed, expired, revoked or signed by an unknown key. */
  readonly verifyToken: (token: string) => Promise<Principal | null>;
  /** base of Location headers behind a reverse proxy, without a trailing slash; null gives absolute paths */
  readonly publicUrl: string | null;
  readonly metrics: Pick<Metrics, "requests" | "requestSeconds">;
  readonly log: Log;
  /** the page for people; null: there is none */
  readonly web: WebAccess | null;
}

/** Dependencies of the page, in addition to those of the API. */
export interface WebAccess {
  readonly sessions: SessionUseCases;
  /** true when the service itself speaks TLS */
  readonly isTls: boolean;
}
