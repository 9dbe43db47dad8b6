import { ApiError } from "../domain/errors.ts";
import type { AccountId } from "../domain/ids.ts";
import { startTimer } from "../system/waiting.ts";

/** A body of more `bytes` is large. */
export const MEDIUM_BODY_BYTES_MAX = 1_048_576;

/** What bodies may take of the memory, in `bytes`. A body that is larger than a limit is taken alone. */
export interface BodyRoomOptions {
  readonly totalBytes: number;
  /** of one account */
  readonly accountBytes: number;
  /** of one account's bodies that wait, of each at most what the server reads of a body unasked */
  readonly waitingBytes: number;
  /** how long a body waits for room, in `milliseconds` */
  readonly waitMsMax: number;
  /** Frees the memory of what was worked on, as far as nobody holds it any more; blocks the event loop for a moment. */
  readonly collect: () => void;
}

/** The garbage collector of its own accord lets hundreds of MiB of strings gather: it is called for each so many `bytes`. */
const COLLECT_BYTES_MIN = 33_554_432;
/** What is less, but no less than this, is collected when no body has come for so long. */
const COLLECT_IDLE_BYTES_MIN = 1_048_576;
const COLLECT_IDLE_MS = 1000;

/** Bun reads as many `bytes` of a body, or little more, that nobody asks for; it leaves the rest in its connection. */
const UNASKED_BYTES_MAX = 1_048_576;

interface Waiting {
  readonly account: Account;
  readonly bytes: number;
  readonly admit: () => void;
}

/** What one account has of a room, in `bytes`. */
interface Account {
  readonly id: AccountId;
  takenBytes: number;
  waitingBytes: number;
}

/**
 * Room in memory for bodies, from their first byte until they have been worked on. What waits is not read from its
 * connection but for its beginning, and that counts, too: so neither the number of requests nor their size costs the
 * service more than this. First come first served, but for those whose own account has taken its share.
 */
export class BodyRoom {
  readonly #options: BodyRoomOptions;
  readonly #waiting = new Set<Waiting>();
  readonly #accounts = new Map<AccountId, Account>();
  #collection: Timer | undefined;
  #takenBytes = 0;
  #garbageBytes = 0;

  constructor(options: BodyRoomOptions) {
    this.#options = options;
  }

  /**
   * Waits for room for `bytes`; disposal, which is idempotent, gives it back.
   * @throws ApiError `too_many_requests` when there is none for too long, or too much waits; the reason of `signal`
   */
  async take(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    signal.throwIfAborted();
    const account = this.#accounts.get(accountId) ?? { id: accountId, takenBytes: 0, waitingBytes: 0 };
    this.#accounts.set(accountId, account);
    const { promise: admitted, resolve: admit, reject } = Promise.withResolvers<void>();
    const waiting = { account, bytes, admit };
    const refuse = (reason: unknown) => {
      reject(reason);
      // Whoever waited behind it may fit now.
      if (this.#leave(waiting)) this.#admit();
    };
    const onAbort = () => refuse(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    using timer = startTimer(this.#options.waitMsMax);
    const full = () => refuse(new ApiError("too_many_requests", "too many bodies are being received"));
    void timer.fired.then(full);
    this.#waiting.add(waiting);
    account.waitingBytes += unaskedBytes(bytes);
    this.#admit();
    if (account.waitingBytes > this.#options.waitingBytes && this.#waiting.has(waiting)) full();
    await admitted;
    let isTaken = true;
    return {
      [Symbol.dispose]: () => {
        if (!isTaken) return;
        isTaken = false;
        this.#count(account, -bytes);
        this.#collectLater(bytes);
        this.#admit();
      },
    };
  }

  #collectLater(bytes: number): void {
    this.#garbageBytes += bytes;
    clearTimeout(this.#collection);
    if (this.#garbageBytes < COLLECT_IDLE_BYTES_MIN) return;
    // Not at once: the answer is still to be given.
    const delayMs = this.#garbageBytes >= COLLECT_BYTES_MIN ? 0 : COLLECT_IDLE_MS;
    this.#collection = setTimeout(() => {
      this.#garbageBytes = 0;
      this.#options.collect();
    }, delayMs);
    this.#collection.unref();
  }

  #admit(): void {
    const { totalBytes, accountBytes } = this.#options;
    for (const waiting of this.#waiting) {
      const { account, bytes, admit } = waiting;
      if (account.takenBytes + bytes > Math.max(accountBytes, bytes)) continue;
      if (this.#takenBytes > 0 && this.#takenBytes + bytes > totalBytes) return;
      this.#count(account, bytes);
      this.#leave(waiting);
      admit();
    }
  }

  /** False when it did not wait any more. */
  #leave(waiting: Waiting): boolean {
    if (!this.#waiting.delete(waiting)) return false;
    waiting.account.waitingBytes -= unaskedBytes(waiting.bytes);
    this.#forget(waiting.account);
    return true;
  }

  #count(account: Account, bytes: number): void {
    this.#takenBytes += bytes;
    account.takenBytes += bytes;
    this.#forget(account);
  }

  #forget({ id, takenBytes, waitingBytes }: Account): void {
    if (takenBytes === 0 && waitingBytes === 0) this.#accounts.delete(id);
  }
}

function unaskedBytes(bytes: number): number {
  return Math.min(bytes, UNASKED_BYTES_MAX);
}

/** What an upload takes of the memory while it comes, in `bytes`: the chunk that is written, and the one behind it. */
const UPLOAD_BYTES = 2_097_152;

export interface BodyRoomsOptions {
  readonly medium: BodyRoomOptions;
  readonly large: BodyRoomOptions;
  readonly uploads: BodyRoomOptions;
}

/** Rooms for each kind of body, so that a client who sends one slowly keeps nobody's body of another kind waiting. */
export class BodyRooms {
  readonly #medium: BodyRoom;
  readonly #large: BodyRoom;
  readonly #uploads: BodyRoom;

  constructor({ medium, large, uploads }: BodyRoomsOptions) {
    this.#medium = new BodyRoom(medium);
    this.#large = new BodyRoom(large);
    this.#uploads = new BodyRoom(uploads);
  }

  /** As `BodyRoom.take`, in the room for bodies of this size. */
  take(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    const room = bytes > MEDIUM_BODY_BYTES_MAX ? this.#large : this.#medium;
    return room.take(accountId, bytes, signal);
  }

  /**
   * The same for an upload, which is never in memory as a whole.
   * @param bytes that it announces; 0 for none
   */
  receive(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#uploads.take(accountId, bytes === 0 ? UPLOAD_BYTES : Math.min(bytes, UPLOAD_BYTES), signal);
  }
}
