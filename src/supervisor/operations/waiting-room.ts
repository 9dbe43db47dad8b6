import { ApiError } from "../../domain/errors.ts";
import type { AccountId } from "../../domain/ids.ts";

/** Largest number of waiting operations of one account. */
export const WAITING_COUNT_MAX = 1000;
/** Largest size of their requests together, in `bytes`: 50 standard inputs of the largest size. */
export const WAITING_BYTES_MAX = 536_870_912;

export interface WaitingRoomLimits {
  /** largest number of waiting operations of one account */
  readonly countMax: number;
  /** largest size of their requests together, in `bytes`; a single request may be larger */
  readonly bytesMax: number;
}

/** Counts and bounds the waiting operations of each account. */
export class WaitingRoom {
  readonly #limits: WaitingRoomLimits;
  readonly #accounts = new Map<AccountId, { count: number; bytes: number }>();

  constructor(limits: WaitingRoomLimits) {
    this.#limits = limits;
  }

  /**
   * Takes a place for a request of `sizeBytes`. Disposal gives it back and is idempotent.
   * @throws ApiError `too_many_requests` when the account has reached a limit
   */
  take(accountId: AccountId, sizeBytes: number): Disposable {
    const { countMax, bytesMax } = this.#limits;
    const { count, bytes } = this.#accounts.get(accountId) ?? { count: 0, bytes: 0 };
    if (count >= countMax) {
      throw new ApiError("too_many_requests", `${countMax} operations of this account are waiting already`);
    }
    if (count > 0 && bytes + sizeBytes > bytesMax) {
      const text = `the waiting operations of this account have ${bytes} bytes of requests already`;
      throw new ApiError("too_many_requests", text, { limit_bytes: bytesMax });
    }
    return this.add(accountId, sizeBytes);
  }

  /** Takes a place regardless of the limits: for operations that were waiting before the service started. */
  add(accountId: AccountId, sizeBytes: number): Disposable {
    const account = this.#accounts.get(accountId) ?? { count: 0, bytes: 0 };
    this.#accounts.set(accountId, account);
    account.count += 1;
    account.bytes += sizeBytes;
    let isTaken = true;
    return {
      [Symbol.dispose]: () => {
        if (!isTaken) return;
        isTaken = false;
        account.count -= 1;
        account.bytes -= sizeBytes;
        if (account.count === 0) this.#accounts.delete(accountId);
      },
    };
  }
}
