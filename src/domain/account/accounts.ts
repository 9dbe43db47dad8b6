import { ApiError } from "../errors.ts";
import { ACCOUNT_LIMITS, type AccountLimit, type AccountLimits, type LimitName } from "./limits.ts";
import { Shares } from "./shares.ts";

/** Changes of some default limits. */
export type LimitChanges = { readonly [Name in LimitName]?: Partial<AccountLimit> };

/** Sizes of uses, each in the unit of its limit. */
export type Uses = { readonly [Name in LimitName]?: number };

/** A limit and its use by an account, both in its unit. */
export interface Usage extends Pick<AccountLimit, "unit"> {
  readonly used: number;
  /** Infinity: no limit */
  readonly limit: number;
}

export interface WaitOptions {
  /** default: 1 */
  readonly size?: number;
  /** size that counts against `waitingMax` during the wait; default: `size` */
  readonly waitingSize?: number;
  readonly signal: AbortSignal;
}

/**
 * The limits of each account, and its uses. Everything that an account can make grow is counted here before it is made, until
 * disposal. An account without uses takes no memory.
 */
export class Accounts {
  readonly limits: AccountLimits;
  readonly #pools = new Map<LimitName, Pool>();

  constructor(changes: LimitChanges = {}) {
    const names = Object.keys(ACCOUNT_LIMITS) as LimitName[];
    const limits = names.map((name) => [name, { ...ACCOUNT_LIMITS[name], ...changes[name] }] as const);
    this.limits = Object.fromEntries(limits) as unknown as AccountLimits;
    for (const [name, limit] of limits) this.#pools.set(name, new Pool(limit));
  }

  /**
   * Uses until disposal, which may be repeated: all of them, or none.
   * @param account null for the appliance's own work, which gets any free part
   * @param uses a name stands for one use of that limit
   * @throws ApiError `too_many_requests`
   */
  take(account: string | null, uses: LimitName | Uses): Disposable {
    return this.#each(uses, (pool, size) => {
      const use = pool.shares.take(account, size);
      if (use === null) throw pool.refusal(account, size);
      return use;
    });
  }

  /** As `take`, but without a check of the limits: for uses that were admitted before, or are bounded elsewhere. */
  add(account: string, uses: Uses): Disposable {
    return this.#each(uses, ({ shares }, size) => shares.add(account, size));
  }

  /**
   * Waits for a use: first come, first served, except that an account that has used up its share waits alone.
   * @throws ApiError `too_many_requests` when the wait is too long, or too much of the account waits; the reason of `signal`
   */
  async wait(account: string, name: LimitName, options: WaitOptions): Promise<Disposable> {
    return await this.#pool(name).wait(account, options);
  }

  /** The use of one limit by an account. */
  used(account: string, name: LimitName): number {
    return this.#pool(name).shares.heldBy(account);
  }

  /** The present use by an account of every limit that is counted here. */
  usage(account: string): ReadonlyMap<LimitName, Usage> {
    return new Map(
      [...this.#pools].map(([name, { limit, shares }]) => {
        return [name, { unit: limit.unit, used: shares.heldBy(account), limit: limit.max }];
      }),
    );
  }

  /** All uses or none. */
  #each(uses: LimitName | Uses, use: (pool: Pool, size: number) => Disposable): Disposable {
    if (typeof uses === "string") return use(this.#pool(uses), 1);
    using stack = new DisposableStack();
    for (const [name, size] of Object.entries(uses)) stack.use(use(this.#pool(name as LimitName), size));
    return stack.move();
  }

  #pool(name: LimitName): Pool {
    const pool = this.#pools.get(name);
    if (pool === undefined) throw new Error(`no limit ${name}`);
    return pool;
  }
}

interface Waiter {
  /** order of arrival */
  readonly turn: number;
  readonly size: number;
  /** counts it among the waiting uses, until disposal */
  readonly waits: Disposable;
  readonly admit: (use: Disposable) => void;
}

/** The uses of one limit, and the waiting uses. */
class Pool {
  readonly limit: AccountLimit;
  readonly shares: Shares;
  readonly #waiting = new Map<string, Set<Waiter>>();
  readonly #waitingSizes = new Shares();
  #turn = 0;

  constructor(limit: AccountLimit) {
    this.limit = limit;
    this.shares = new Shares({ ...limit, ownerMax: limit.max });
  }

  /** The details name the account's own limit if that one has no room for `size`. */
  refusal(account: string | null, size: number): ApiError {
    const { unit, max, refusal, retryAfterSeconds } = this.limit;
    const used = account === null ? 0 : this.shares.heldBy(account);
    const details = {
      ...(used + size > max && { [unit === "bytes" ? "limit_bytes" : "limit"]: max }),
      ...(retryAfterSeconds !== undefined && { retry_after_seconds: retryAfterSeconds }),
    };
    return new ApiError("too_many_requests", refusal({ max, used }), details);
  }

  async wait(account: string, { size = 1, waitingSize = size, signal }: WaitOptions): Promise<Disposable> {
    signal.throwIfAborted();
    const free = this.#waiting.size === 0 ? this.shares.take(account, size) : null;
    if (free !== null) return this.#served(free);
    const { waitMsMax = 0, waitingMax = Infinity } = this.limit;
    const { promise, resolve, reject } = Promise.withResolvers<Disposable>();
    const waits = this.#waitingSizes.add(account, waitingSize);
    const waiter: Waiter = { turn: ++this.#turn, size, waits, admit: resolve };
    const queue = this.#waiting.get(account) ?? new Set();
    this.#waiting.set(account, queue.add(waiter));
    this.#serve();
    if (!queue.has(waiter)) return this.#served(await promise);
    const leave = (reason: unknown) => {
      if (!this.#leave(account, waiter)) return;
      reject(reason);
      // Later uses may fit now.
      this.#serve();
    };
    if (this.#waitingSizes.heldBy(account) > waitingMax) leave(this.refusal(account, size));
    const timer = setTimeout(() => leave(this.refusal(account, size)), waitMsMax);
    using waiting = new DisposableStack();
    waiting.defer(() => clearTimeout(timer));
    const onAbort = () => leave(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    waiting.defer(() => signal.removeEventListener("abort", onAbort));
    return this.#served(await promise);
  }

  /** Wraps a use so that its end admits waiting ones. */
  #served(use: Disposable): Disposable {
    return {
      [Symbol.dispose]: () => {
        use[Symbol.dispose]();
        this.#serve();
      },
    };
  }

  /** Admits the waiting uses that fit, in the order of their arrival. An account that exceeds its own share does not block others. */
  #serve(): void {
    while (this.#waiting.size > 0) if (!this.#admitNext()) return;
  }

  #admitNext(): boolean {
    const heads = [...this.#waiting].map(([account, [first]]) => ({ account, first: first as Waiter }));
    heads.sort((a, b) => a.first.turn - b.first.turn);
    for (const { account, first } of heads) {
      const use = this.shares.take(account, first.size);
      if (use !== null) {
        this.#leave(account, first);
        first.admit(use);
        return true;
      }
      // The account's share is not the reason: there is no room for it, so later uses must not get it first.
      if (this.shares.heldBy(account) === 0) return false;
    }
    return false;
  }

  /** False when it no longer waits. */
  #leave(account: string, waiter: Waiter): boolean {
    const queue = this.#waiting.get(account);
    if (queue?.delete(waiter) !== true) return false;
    waiter.waits[Symbol.dispose]();
    if (queue.size === 0) this.#waiting.delete(account);
    return true;
  }
}
