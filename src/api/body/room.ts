import type { Accounts } from "../../domain/account/accounts.ts";
import { type LimitName, UPLOAD_BYTES } from "../../domain/account/limits.ts";
import type { AccountId } from "../../domain/ids.ts";

/** Longest body of medium size, in `bytes`; a longer one is large. */
export const MEDIUM_BODY_BYTES_MAX = 1_048_576;

/** `collect` is called after this many `bytes` of bodies: otherwise the garbage grows by hundreds of MiB of strings. */
const COLLECT_BYTES_MIN = 33_554_432;
/** At least this much garbage is collected when no body has arrived for `COLLECT_IDLE_MS`, in `bytes`. */
const COLLECT_IDLE_BYTES_MIN = 1_048_576;
const COLLECT_IDLE_MS = 1000;

/** Bun buffers about this much of a body that is not being read, in `bytes`; the rest stays in the connection. */
export const BUFFERED_BYTES_MAX = 1_048_576;

/**
 * Bounds the memory of bodies, from their first byte until their request is done, whatever the number of requests and
 * their sizes. A waiting body is not read from its connection, except for the part that the server buffers, which counts.
 */
class BodyRoom {
  readonly #accounts: Accounts;
  readonly #limit: LimitName;
  /** null: the memory of these bodies is freed chunk by chunk */
  readonly #collect: (() => void) | null;
  #collection: Timer | undefined;
  #garbageBytes = 0;

  constructor(accounts: Accounts, limit: LimitName, collect: (() => void) | null) {
    this.#accounts = accounts;
    this.#limit = limit;
    this.#collect = collect;
  }

  /**
   * Waits for room for a body of `bytes`. Disposal returns it and is idempotent.
   * @throws ApiError as `Accounts.wait` does
   */
  async take(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    const waitingSize = Math.min(bytes, BUFFERED_BYTES_MAX);
    const place = await this.#accounts.wait(accountId, this.#limit, { size: bytes, waitingSize, signal });
    const owned = new DisposableStack();
    owned.defer(() => this.#collectLater(bytes));
    owned.use(place);
    return owned;
  }

  #collectLater(bytes: number): void {
    const collect = this.#collect;
    if (collect === null) return;
    this.#garbageBytes += bytes;
    clearTimeout(this.#collection);
    if (this.#garbageBytes < COLLECT_IDLE_BYTES_MIN) return;
    // In a later turn, so that the response is sent first.
    const delayMs = this.#garbageBytes >= COLLECT_BYTES_MIN ? 0 : COLLECT_IDLE_MS;
    this.#collection = setTimeout(() => {
      this.#garbageBytes = 0;
      collect();
    }, delayMs);
    this.#collection.unref();
  }
}

/** One room for each kind of body, so that slow clients delay only bodies of the same kind. */
export class BodyRooms {
  readonly #medium: BodyRoom;
  readonly #large: BodyRoom;
  readonly #uploads: BodyRoom;
  readonly #inputs: BodyRoom;

  /** @param collect collects the garbage of requests that are done; blocks the event loop for a moment */
  constructor(accounts: Accounts, collect: () => void) {
    this.#medium = new BodyRoom(accounts, "bodies", collect);
    this.#large = new BodyRoom(accounts, "largeBodies", collect);
    this.#uploads = new BodyRoom(accounts, "uploads", null);
    this.#inputs = new BodyRoom(accounts, "inputs", null);
  }

  /** Waits for room for a JSON body, as `Accounts.wait` does. */
  take(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    const room = bytes > MEDIUM_BODY_BYTES_MAX ? this.#large : this.#medium;
    return room.take(accountId, bytes, signal);
  }

  /**
   * Waits for room for an upload, which is never in memory as a whole.
   * @param bytes announced length; 0 if none is announced
   */
  receive(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#uploads.take(accountId, streamedBytes(bytes), signal);
  }

  /** Waits for room for a JSON body whose request may last as long as an instance runs. */
  takeLong(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#inputs.take(accountId, bytes, signal);
  }

  /** Waits for room for a body that may last as long as an instance runs, and is never in memory as a whole. */
  stream(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#inputs.take(accountId, streamedBytes(bytes), signal);
  }
}

function streamedBytes(announcedBytes: number): number {
  return announcedBytes === 0 ? UPLOAD_BYTES : Math.min(announcedBytes, UPLOAD_BYTES);
}
