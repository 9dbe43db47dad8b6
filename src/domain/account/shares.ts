/** The shared quantity, in any unit. */
export interface SharesOptions {
  /** default: no limit */
  readonly total?: number | undefined;
  /** part of `total` that no owner gets; default: none */
  readonly reserved?: number | undefined;
  /** part of `total` that only owners without parts get; default: none */
  readonly spare?: number | undefined;
  /** largest share of one owner; default: no limit */
  readonly ownerMax?: number | undefined;
}

/**
 * Divides a quantity among owners. An owner gets more while its parts are at most as large as the free rest. So a single
 * owner has at most half, without fixed shares that stay unused. The spare part prevents a few owners from using up
 * everything together: each further owner gets its first part from it. Owners without parts take no memory.
 */
export class Shares {
  readonly #options: Required<{ readonly [Name in keyof SharesOptions]: number }>;
  readonly #held = new Map<string, number>();
  #taken = 0;

  constructor({ total = Infinity, reserved = 0, spare = 0, ownerMax = Infinity }: SharesOptions = {}) {
    this.#options = { total, reserved, spare, ownerMax };
  }

  /** Sum of an owner's parts. */
  heldBy(owner: string): number {
    return this.#held.get(owner) ?? 0;
  }

  /** Number of owners with parts. */
  get ownersCount(): number {
    return this.#held.size;
  }

  /**
   * A part of `size` until disposal, which may be repeated; null when the owner cannot get it now. The first part of an owner
   * may be larger than its share, and larger than the total when there are no other parts.
   * @param owner null for the daemon's own work, which gets any free part
   */
  take(owner: string | null, size = 1): Disposable | null {
    return this.#fits(owner, size) ? this.add(owner, size) : null;
  }

  /** A part of `size` until disposal, whether it fits or not. */
  add(owner: string | null, size = 1): Disposable {
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
    const { total, reserved, spare, ownerMax } = this.#options;
    const free = total - this.#taken;
    if (owner === null) return size <= free;
    const held = this.heldBy(owner);
    if (held === 0) return size <= free - reserved || this.#taken === 0;
    return held + size <= Math.min(free - reserved, ownerMax) && size <= free - reserved - spare;
  }

  #count(owner: string | null, size: number): void {
    this.#taken += size;
    if (owner === null) return;
    const held = this.heldBy(owner) + size;
    if (held > 0) this.#held.set(owner, held);
    else this.#held.delete(owner);
  }
}
