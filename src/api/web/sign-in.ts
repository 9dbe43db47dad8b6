import { isIP } from "node:net";
import type { Server } from "bun";
import { Shares } from "../../domain/account/shares.ts";
import { ApiError } from "../../domain/errors.ts";
import type { Log } from "../../log.ts";
import type { Session, SessionProof, SessionUseCases } from "../../service/sessions.ts";
import { ownTurn } from "../../system/turns.ts";
import { readJson } from "../body/body.ts";
import { FailedSignIns, networkOf } from "./failed-sign-ins.ts";
import type { SessionGate } from "./session-gate.ts";

/** Longest request to sign in, in `bytes`: a token of 4 KiB, with room. */
const SIGN_IN_BYTES_MAX = 8192;
/** Longest time for the arrival of such a request, in `milliseconds`: there is room for few of them. */
const SIGN_IN_MS_MAX = 10_000;
/** Largest number of concurrent requests to sign in. One network cannot use all of them. */
const SIGN_INS = { total: 1024, spare: 20 };

export interface SignInOptions {
  readonly gate: SessionGate;
  readonly sessions: SessionUseCases;
  /** base of the addresses behind a reverse proxy; null: there is none */
  readonly publicUrl: string | null;
  readonly log: Log;
}

/** Signs people in by their tokens. Callers are unknown, so every resource of it is bounded. */
export class SignIn {
  readonly #options: SignInOptions;
  readonly #failures = new FailedSignIns();
  readonly #places = new Shares(SIGN_INS);

  constructor(options: SignInOptions) {
    this.#options = options;
  }

  /** @throws ApiError `forbidden`, `too_many_requests`, `unauthorized`, `validation_error`, `payload_too_large` */
  async run(request: Request, server: Server<unknown> | null): Promise<Session & SessionProof> {
    const { gate, sessions, log } = this.#options;
    gate.requireOwnPage(request);
    gate.requireCookie(request);
    const address = this.#addressOf(request, server);
    const succeeded = this.#failures.begin(address);
    const token = await this.#readToken(request, address);
    // Otherwise all requests that arrive together would write in one turn of the event loop.
    await ownTurn();
    const session = await sessions.begin(token, gate.proofsOf(request)).catch((error: unknown) => {
      if (error instanceof ApiError) log.info("sign-in on the page failed", { address });
      throw error;
    });
    succeeded();
    const { accountId, tokenId } = session.principal;
    log.info("signed in on the page", { account: accountId, token_id: tokenId, address });
    return session;
  }

  async #readToken(request: Request, address: string): Promise<string> {
    using place = this.#places.take(networkOf(address));
    if (place === null) {
      throw new ApiError("too_many_requests", "too many people sign in at the moment", { retry_after_seconds: 1 });
    }
    const body = await readJson(request, { limitBytes: SIGN_IN_BYTES_MAX, smallMsMax: SIGN_IN_MS_MAX });
    const { token } = (body ?? {}) as { readonly token?: unknown };
    if (typeof token !== "string") throw new ApiError("validation_error", "token must be a string", { field: "token" });
    return token.trim();
  }

  /**
   * The address of the client. A reverse proxy on this host adds it to a header; a forged one only allows more attempts.
   */
  #addressOf(request: Request, server: Server<unknown> | null): string {
    const peer = server?.requestIP(request)?.address ?? "";
    const isLocal = /^(?:::ffff:)?127\.|^::1$/.test(peer);
    const added = request.headers.get("x-forwarded-for")?.split(",").at(-1)?.trim() ?? "";
    return isLocal && this.#options.publicUrl !== null && isIP(added) !== 0 ? added : peer;
  }
}
