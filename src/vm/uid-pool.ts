/** A user id that no other live VM has, until disposal. */
export interface UidLease extends Disposable {
  readonly uid: number;
}

/** Gives each VM a user of its own: what one VMM leaves behind, another cannot touch. */
export class UidPool {
  readonly #base: number;
  readonly #count: number;
  readonly #used = new Set<number>();
  #next = 0;

  constructor(base: number, count: number) {
    this.#base = base;
    this.#count = count;
  }

  /** The id that was unused for the longest time. @throws Error when all are taken */
  acquire(): UidLease {
    for (let tried = 0; tried < this.#count; tried++) {
      const uid = this.#base + ((this.#next + tried) % this.#count);
      if (this.#used.has(uid)) continue;
      this.#used.add(uid);
      this.#next = uid - this.#base + 1;
      return { uid, [Symbol.dispose]: () => void this.#used.delete(uid) };
    }
    throw new Error(`all ${this.#count} user ids of the range for virtual machines are taken`);
  }
}
