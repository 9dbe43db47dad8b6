import { ApiError } from "../../domain/errors.ts";
import type { AccountId } from "../../domain/ids.ts";

/** Operations of one account that may wait; more is a mistake of the client. */
export const WAITING_COUNT_MAX = 1000;
/** What their requests may take of the disk together, in `bytes`: 50 standard inputs of the largest size. */
export const WAITING_BYTES_MAX = 536_870_912;

export interface WaitingRoomLimits {
  /** operations of one account that may wait */
  readonly countMax: number;
  /** what their requests may take of the disk together, in `bytes`; a single one may take any */
  readonly bytesMax: number;
}

/** Counts what waits of each account. */
export class WaitingRoom {
  readonly #limits: WaitingRoomLimits;
  readonly #accounts = new Map<AccountId, { count: number; bytes: number }>();

  constructor(limits: WaitingRoomLimits) {
    this.#limits = limits;
  }

  /**
   * Takes a place for a request of `sizeBytes`, until disposal, which is idempotent.
   * @throws ApiError `too_many_requests` when the account has no more
   */
  take(accountId: AccountId, sizeBytes: number): Disposable {
    const { countMax, bytesMax } = this.#limits;
    const { count, bytes } = this.#accounts.get(accountId) ?? { count: 0, bytes: 0 };
    if (count >= countMax) {
      throw new ApiError("too_many_requests", `${countMax} operations of this account are waiting already`);
    }
    if (count > 0 && bytes + sizeBytes > bytesMax) {
      const text = `the requests of this account's operations that wait have ${bytes} bytes already`;
      throw new ApiError("too_many_requests", text, { limit_bytes: bytesMax });
    }
    return this.add(accountId, sizeBytes);
  }

  /** Takes a place whatever the limits say: for what waits already when the service starts. */
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
