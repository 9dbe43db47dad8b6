import { Shares } from "../domain/account/shares.ts";
import { ApiError } from "../domain/errors.ts";
import type { AccountId } from "../domain/ids.ts";
import { YieldingTurns } from "../system/yielding-turns.ts";
import { announcedLength } from "./body/body.ts";
import { BUFFERED_BYTES_MAX } from "./body/room.ts";
import type { RequestState } from "./request-tracker.ts";

/** Bodies of requests whose callers are not known yet, in `bytes`, and the part of them that is left to others. */
const BODIES_BYTES_MAX = 268_435_456;
const SPARE_BYTES = 20 * BUFFERED_BYTES_MAX;
/** Largest number of cached proofs. */
const PROVEN_COUNT_MAX = 1024;
/** Stands for the accounts of all other credentials, which anybody can make up. */
const UNPROVEN = "";

/**
 * Requests from their arrival until their callers are known. Bun hands over all requests that have arrived, which may be
 * hundreds, in one turn of the event loop, and buffers their bodies meanwhile.
 */
export class Arrivals {
  readonly #credentialOf: (request: Request) => string | null;
  readonly #turns = new YieldingTurns();
  readonly #bodies = new Shares({ total: BODIES_BYTES_MAX, spare: SPARE_BYTES });
  /** accounts by their proven credentials, the latest proof at the end; an account may have many credentials */
  readonly #proven = new Map<string, AccountId>();

  constructor(credentialOf: (request: Request) => string | null) {
    this.#credentialOf = credentialOf;
  }

  /**
   * Proves the caller of a request in its turn. Credentials take turns, so that the requests of one hold up no other.
   * @param prove sets the principal of `state`, if there is one
   * @throws ApiError `too_many_requests` at once, when too many bodies wait; what `prove` throws
   */
  async admit<T>(request: Request, state: Pick<RequestState, "principal">, prove: () => Promise<T>): Promise<T> {
    const credential = this.#credentialOf(request);
    const bytes = bufferedBytes(request);
    using _body = bytes === 0 ? null : this.#take(credential, bytes);
    const turn = this.#turns.take(credential);
    if (turn !== undefined) await turn;
    if (credential === null) return await prove();
    const proof = await prove().catch((error: unknown) => {
      this.#proven.delete(credential);
      throw error;
    });
    if (state.principal !== null) this.#remember(credential, state.principal.accountId);
    return proof;
  }

  #take(credential: string | null, bytes: number): Disposable {
    const account = credential === null ? undefined : this.#proven.get(credential);
    const body = this.#bodies.take(account ?? UNPROVEN, bytes);
    if (body === null) throw new ApiError("too_many_requests", "too many bodies arrive", { retry_after_seconds: 1 });
    return body;
  }

  #remember(credential: string, account: AccountId): void {
    this.#proven.delete(credential);
    this.#proven.set(credential, account);
    const [oldest = credential] = this.#proven.keys();
    if (this.#proven.size > PROVEN_COUNT_MAX) this.#proven.delete(oldest);
  }
}

/** How much of a body the server may buffer before anything reads it, in `bytes`. */
function bufferedBytes(request: Request): number {
  const bytes = request.headers.has("transfer-encoding") ? BUFFERED_BYTES_MAX : announcedLength(request);
  return Math.min(bytes, BUFFERED_BYTES_MAX);
}
