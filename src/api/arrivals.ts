import { Shares } from "../domain/account/shares.ts";
import { ApiError } from "../domain/errors.ts";
import { YieldingTurns } from "../system/yielding-turns.ts";
import { announcedLength } from "./body/body.ts";
import { BUFFERED_BYTES_MAX } from "./body/room.ts";
import type { RequestState } from "./request-tracker.ts";

/** Bodies of requests whose callers are not known yet, in `bytes`, and the part of them that is left to others. */
const BODIES_BYTES_MAX = 268_435_456;
const SPARE_BYTES = 20 * BUFFERED_BYTES_MAX;
/** Credentials that are remembered as proven. */
const PROVEN_COUNT_MAX = 1024;
/** Stands for all other credentials, which anybody can make up. */
const UNPROVEN = "";

/**
 * Requests from their arrival until their callers are known. Bun hands over all requests that have arrived, which may be
 * hundreds, in one turn of the event loop, and buffers their bodies meanwhile.
 */
export class Arrivals {
  readonly #turns = new YieldingTurns();
  readonly #bodies = new Shares({ total: BODIES_BYTES_MAX, spare: SPARE_BYTES });
  /** credentials, the one that was proven last at the end */
  readonly #proven = new Set<string>();

  /**
   * Proves the caller of a request in its turn. Credentials take turns, so that the requests of one hold up no other.
   * @param prove sets the principal of `state`, if there is one
   * @throws ApiError `too_many_requests` at once, when too many bodies wait; what `prove` throws
   */
  async admit<T>(request: Request, state: Pick<RequestState, "principal">, prove: () => Promise<T>): Promise<T> {
    const credential = request.headers.get("authorization") ?? request.headers.get("cookie");
    const bytes = bufferedBytes(request);
    using _body = bytes === 0 ? null : this.#take(credential, bytes);
    const turn = this.#turns.take(credential);
    if (turn !== undefined) await turn;
    const proof = await prove();
    if (bytes > 0 && credential !== null && state.principal !== null) this.#remember(credential);
    return proof;
  }

  #take(credential: string | null, bytes: number): Disposable {
    const owner = credential !== null && this.#proven.has(credential) ? credential : UNPROVEN;
    const body = this.#bodies.take(owner, bytes);
    if (body === null) throw new ApiError("too_many_requests", "too many bodies arrive", { retry_after_seconds: 1 });
    return body;
  }

  #remember(credential: string): void {
    this.#proven.delete(credential);
    this.#proven.add(credential);
    const [oldest = credential] = this.#proven;
    if (this.#proven.size > PROVEN_COUNT_MAX) this.#proven.delete(oldest);
  }
}

/** How much of a body the server may buffer before anything reads it, in `bytes`. */
function bufferedBytes(request: Request): number {
  const bytes = request.headers.has("transfer-encoding") ? BUFFERED_BYTES_MAX : announcedLength(request);
  return Math.min(bytes, BUFFERED_BYTES_MAX);
}
