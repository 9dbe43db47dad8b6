/**
 * Shares places out. An account gets one while it holds fewer than are free for accounts: so nobody has more than half of
 * them, and whoever comes later always finds some, without fixed shares that lie idle.
 */
export class Shares {
  readonly #reservedCount: number;
  #freeCount: number;
  readonly #held = new Map<string, number>();

  /** @param reservedCount of all places, those that no account gets */
  constructor(count: number, reservedCount: number) {
    this.#freeCount = count;
    this.#reservedCount = reservedCount;
  }

  /**
   * A place until disposal, which may be repeated; null when there is none.
   * @param account null for the daemon's own tools, which get any place
   */
  take(account: string | null): Disposable | null {
    const held = account === null ? 0 : (this.#held.get(account) ?? 0);
    const free = this.#freeCount - (account === null ? 0 : this.#reservedCount);
    if (held >= free) return null;
    this.#freeCount -= 1;
    if (account !== null) this.#held.set(account, held + 1);
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (isHeld) this.#give(account);
        isHeld = false;
      },
    };
  }

  #give(account: string | null): void {
    this.#freeCount += 1;
    if (account === null) return;
    const left = (this.#held.get(account) ?? 0) - 1;
    if (left > 0) this.#held.set(account, left);
    else this.#held.delete(account);
  }
}
