type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;

const PAGE_BITS = 13;
const PAGE_COUNT = 1 << PAGE_BITS;

/** Numbers by consecutive places from zero on. It grows by pages, so that no step of its growth takes long. */
export class Column<T extends Numbers> {
  readonly #type: new (
    length: number,
  ) => T;
  readonly #pages: T[] = [];

  constructor(type: new (length: number) => T) {
    this.#type = type;
  }

  /** memory that is taken, in `bytes` */
  get heldBytes(): number {
    return this.#pages.length * PAGE_COUNT * (this.#pages[0]?.BYTES_PER_ELEMENT ?? 0);
  }

  /** Zero where nothing was set. */
  get(at: number): number {
    return this.#pages[at >>> PAGE_BITS]?.[at & (PAGE_COUNT - 1)] ?? 0;
  }

  set(at: number, value: number): void {
    const page = at >>> PAGE_BITS;
    while (this.#pages.length <= page) this.#pages.push(new this.#type(PAGE_COUNT));
    (this.#pages[page] as T)[at & (PAGE_COUNT - 1)] = value;
  }
}

/**
 * Finds entries, which are consecutive numbers from one on, by a hash of 32 bits. A table that doubled would have to be
 * filled anew at once; this one splits one of its chains with every entry that is added (linear hashing).
 */
export class HashChains {
  /** first entry of each chain, or zero */
  readonly #heads = new Column(Uint32Array);
  /** by entry: the next one in its chain, or zero */
  readonly #nexts = new Column(Uint32Array);
  readonly #hashes = new Column(Uint32Array);
  #chainsCount = 1;
  /** the largest power of two that is no larger than the number of chains */
  #floor = 1;

  get heldBytes(): number {
    return this.#heads.heldBytes + this.#nexts.heldBytes + this.#hashes.heldBytes;
  }

  /** The entry with that hash that `isIt` recognises, or null. */
  find(hash: number, isIt: (entry: number) => boolean): number | null {
    for (let entry = this.#heads.get(this.#chainOf(hash)); entry !== 0; entry = this.#nexts.get(entry)) {
      if (this.#hashes.get(entry) === hash && isIt(entry)) return entry;
    }
    return null;
  }

  /** `entry` is in no chain yet. */
  add(entry: number, hash: number): void {
    this.#hashes.set(entry, hash);
    this.#link(this.#chainOf(hash), entry);
    this.#split();
  }

  #chainOf(hash: number): number {
    const chain = hash & (2 * this.#floor - 1);
    return chain < this.#chainsCount ? chain : chain - this.#floor;
  }

  #link(chain: number, entry: number): void {
    this.#nexts.set(entry, this.#heads.get(chain));
    this.#heads.set(chain, entry);
  }

  /** Makes one chain more, of a part of the one whose hashes end alike. */
  #split(): void {
    const chain = this.#chainsCount - this.#floor;
    let entry = this.#heads.get(chain);
    this.#heads.set(chain, 0);
    this.#chainsCount++;
    if (this.#chainsCount === 2 * this.#floor) this.#floor *= 2;
    while (entry !== 0) {
      const next = this.#nexts.get(entry);
      this.#link(this.#chainOf(this.#hashes.get(entry)), entry);
      entry = next;
    }
  }
}
