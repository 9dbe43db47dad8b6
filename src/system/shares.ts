/** What is shared out, in `places` or `bytes`. */
export interface SharesOptions {
  readonly total: number;
  /** of `total`, the part that no owner gets; default: none */
  readonly reserved?: number;
  /** largest share of one owner; default: bounded by what is free only */
  readonly ownerMax?: number;
}

/**
 * Shares places or bytes out to owners. An owner gets more while what it holds stays at most as large as what is left free:
 * so one alone has at most half, and later ones still get some, without fixed shares that lie idle.
 */
export class Shares {
  readonly #options: Required<SharesOptions>;
  readonly #held = new Map<string, number>();
  #taken = 0;

  constructor({ total, reserved = 0, ownerMax = Number.POSITIVE_INFINITY }: SharesOptions) {
    this.#options = { total, reserved, ownerMax };
  }

  /** What an owner holds. */
  heldBy(owner: string): number {
    return this.#held.get(owner) ?? 0;
  }

  /**
   * A part of `size` until disposal, which may be repeated; null when the owner cannot get it now. The first part of an owner
   * may be larger than its share, and than everything when nothing else is taken.
   * @param owner null for the daemon's own tools, which get whatever is free
   */
  take(owner: string | null, size = 1): Disposable | null {
    if (!this.#fits(owner, size)) return null;
    this.#count(owner, size);
    let isHeld = true;
    return {
      [Symbol.dispose]: () => {
        if (isHeld) this.#count(owner, -size);
        isHeld = false;
      },
    };
  }

  #fits(owner: string | null, size: number): boolean {
    const { total, reserved, ownerMax } = this.#options;
    const free = total - this.#taken;
    if (owner === null) return size <= free;
    const held = this.heldBy(owner);
    if (held === 0) return size <= free - reserved || this.#taken === 0;
    return held + size <= Math.min(free - reserved, ownerMax);
  }

  #count(owner: string | null, size: number): void {
    this.#taken += size;
    if (owner === null) return;
    const held = this.heldBy(owner) + size;
    if (held > 0) this.#held.set(owner, held);
    else this.#held.delete(owner);
  }
}
