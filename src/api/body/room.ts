import { ApiError } from "../../domain/errors.ts";
import type { AccountId } from "../../domain/ids.ts";
import { Shares } from "../../system/shares.ts";
import { startTimer } from "../../system/waiting.ts";

/** Longest body of medium size, in `bytes`; a longer one is large. */
export const MEDIUM_BODY_BYTES_MAX = 1_048_576;

/** Memory limits of bodies, in `bytes`. A body that is larger than a limit is admitted alone. */
export interface BodyRoomOptions {
  /** all bodies together; accounts share it as `Shares` does */
  readonly totalBytes: number;
  /** the bodies of one account at most */
  readonly accountBytes: number;
  /** the waiting bodies of one account; each counts at most as the bytes that the server buffers unread */
  readonly waitingBytes: number;
  /** longest wait of a body, in `milliseconds` */
  readonly waitMsMax: number;
  /** Collects the garbage of requests that are done; blocks the event loop for a moment. */
  readonly collect: () => void;
}

/** After this many `bytes` of bodies, `collect` is called: left alone, the garbage grows by hundreds of MiB of strings. */
const COLLECT_BYTES_MIN = 33_554_432;
/** Less garbage, but at least this, is collected when no body has come for `COLLECT_IDLE_MS`. */
const COLLECT_IDLE_BYTES_MIN = 1_048_576;
const COLLECT_IDLE_MS = 1000;

/** Bun buffers about this much of a body that is not being read, in `bytes`; the rest stays in the connection. */
const BUFFERED_BYTES_MAX = 1_048_576;

interface Waiting {
  readonly accountId: AccountId;
  readonly bytes: number;
  readonly admit: (place: Disposable) => void;
}

/**
 * Bounds the memory of bodies, from their first byte until their request is done, whatever the number of requests and
 * their sizes. A waiting body is not read from its connection, except for the part that the server buffers, which counts.
 * First come, first served, except that an account that has used up its share waits.
 */
export class BodyRoom {
  readonly #options: BodyRoomOptions;
  readonly #shares: Shares;
  readonly #waiting = new Set<Waiting>();
  /** in `bytes`, by account */
  readonly #waitingBytes = new Map<AccountId, number>();
  #collection: Timer | undefined;
  #garbageBytes = 0;

  constructor(options: BodyRoomOptions) {
    this.#options = options;
    this.#shares = new Shares({ total: options.totalBytes, ownerMax: options.accountBytes });
  }

  /**
   * Waits for room for a body of `bytes`. Disposal gives it back and is idempotent.
   * @throws ApiError `too_many_requests` when the wait is too long, or too many bodies of the account wait; the reason of
   *   `signal`
   */
  async take(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    signal.throwIfAborted();
    const { promise: admitted, resolve: admit, reject } = Promise.withResolvers<Disposable>();
    const waiting = { accountId, bytes, admit };
    const refuse = (reason: unknown) => {
      reject(reason);
      // A body behind it in the queue may fit now.
      if (this.#dequeue(waiting)) this.#admit();
    };
    const onAbort = () => refuse(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    using _listener = { [Symbol.dispose]: () => signal.removeEventListener("abort", onAbort) };
    using timer = startTimer(this.#options.waitMsMax);
    const full = () => refuse(new ApiError("too_many_requests", "too many bodies are being received"));
    void timer.fired.then(full);
    this.#waiting.add(waiting);
    this.#countWaiting(waiting, 1);
    this.#admit();
    if (this.#isOver(accountId) && this.#waiting.has(waiting)) full();
    const place = await admitted;
    let isTaken = true;
    return {
      [Symbol.dispose]: () => {
        if (!isTaken) return;
        isTaken = false;
        place[Symbol.dispose]();
        this.#collectLater(bytes);
        this.#admit();
      },
    };
  }

  #collectLater(bytes: number): void {
    this.#garbageBytes += bytes;
    clearTimeout(this.#collection);
    if (this.#garbageBytes < COLLECT_IDLE_BYTES_MIN) return;
    // In a later turn, so that the response is sent first.
    const delayMs = this.#garbageBytes >= COLLECT_BYTES_MIN ? 0 : COLLECT_IDLE_MS;
    this.#collection = setTimeout(() => {
      this.#garbageBytes = 0;
      this.#options.collect();
    }, delayMs);
    this.#collection.unref();
  }

  #admit(): void {
    for (const waiting of this.#waiting) {
      const { accountId, bytes, admit } = waiting;
      const place = this.#shares.take(accountId, bytes);
      if (place !== null) {
        this.#dequeue(waiting);
        admit(place);
      } else if (this.#shares.heldBy(accountId) === 0) {
        // What its account holds is not why: there is no room for it, so that none is given to those behind it.
        return;
      }
    }
  }

  /** False when it was not in the queue any more. */
  #dequeue(waiting: Waiting): boolean {
    if (!this.#waiting.delete(waiting)) return false;
    this.#countWaiting(waiting, -1);
    return true;
  }

  #countWaiting({ accountId, bytes }: Waiting, sign: 1 | -1): void {
    const counted = (this.#waitingBytes.get(accountId) ?? 0) + sign * bufferedBytes(bytes);
    if (counted > 0) this.#waitingBytes.set(accountId, counted);
    else this.#waitingBytes.delete(accountId);
  }

  #isOver(accountId: AccountId): boolean {
    return (this.#waitingBytes.get(accountId) ?? 0) > this.#options.waitingBytes;
  }
}

function bufferedBytes(bytes: number): number {
  return Math.min(bytes, BUFFERED_BYTES_MAX);
}

/** Memory of an upload in `bytes`: the chunk that is being written, and the next one. */
const UPLOAD_BYTES = 2_097_152;

export interface BodyRoomsOptions {
  readonly medium: BodyRoomOptions;
  readonly large: BodyRoomOptions;
  readonly uploads: BodyRoomOptions;
  /** for bodies that last as long as a process reads them */
  readonly streams: BodyRoomOptions;
}

/** One room for each kind of body, so that slow clients delay only bodies of the same kind. */
export class BodyRooms {
  readonly #medium: BodyRoom;
  readonly #large: BodyRoom;
  readonly #uploads: BodyRoom;
  readonly #streams: BodyRoom;

  constructor({ medium, large, uploads, streams }: BodyRoomsOptions) {
    this.#medium = new BodyRoom(medium);
    this.#large = new BodyRoom(large);
    this.#uploads = new BodyRoom(uploads);
    this.#streams = new BodyRoom(streams);
  }

  /** Takes room for a JSON body, as `BodyRoom.take` does. */
  take(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    const room = bytes > MEDIUM_BODY_BYTES_MAX ? this.#large : this.#medium;
    return room.take(accountId, bytes, signal);
  }

  /**
   * Takes room for an upload, which is never in memory as a whole.
   * @param bytes announced length; 0 if none is announced
   */
  receive(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#uploads.take(accountId, streamedBytes(bytes), signal);
  }

  /** Takes room for a JSON body whose request may last as long as an instance runs. */
  takeLong(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#streams.take(accountId, bytes, signal);
  }

  /** Takes room for a body that may last as long as an instance runs, and is never in memory as a whole. */
  stream(accountId: AccountId, bytes: number, signal: AbortSignal): Promise<Disposable> {
    return this.#streams.take(accountId, streamedBytes(bytes), signal);
  }
}

function streamedBytes(announcedBytes: number): number {
  return announcedBytes === 0 ? UPLOAD_BYTES : Math.min(announcedBytes, UPLOAD_BYTES);
}
