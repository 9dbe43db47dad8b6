type Numbers = Uint8Array | Uint16Array | Uint32Array | Float64Array;

const PAGE_BITS = 13;
const PAGE_COUNT = 1 << PAGE_BITS;

/** An array of numbers that grows by pages, so that growing never takes long. */
export class Column<T extends Numbers> {
  readonly #type: new (
    length: number,
  ) => T;
  readonly #pages: T[] = [];

  constructor(type: new (length: number) => T) {
    this.#type = type;
  }

  /** memory use, in `bytes` */
  get heldBytes(): number {
    return this.#pages.length * PAGE_COUNT * (this.#pages[0]?.BYTES_PER_ELEMENT ?? 0);
  }

  /** The value at `at`; zero if it was never set. */
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
 * A hash table of entries, which are consecutive numbers from one. A table that doubles its size must rehash everything
 * at once; this one splits one chain for each entry that is added (linear hashing).
 */
export class HashChains {
  /** first entry of each chain, or zero */
  readonly #heads = new Column(Uint32Array);
  /** next entry in the chain, by entry; or zero */
  readonly #nexts = new Column(Uint32Array);
  readonly #hashes = new Column(Uint32Array);
  #chainsCount = 1;
  /** the largest power of two that is not larger than the number of chains */
  #floor = 1;

  get heldBytes(): number {
    return this.#heads.heldBytes + this.#nexts.heldBytes + this.#hashes.heldBytes;
  }

  /** The entry with this hash that `matches` accepts, or null. */
  find(hash: number, matches: (entry: number) => boolean): number | null {
    for (let entry = this.#heads.get(this.#chainOf(hash)); entry !== 0; entry = this.#nexts.get(entry)) {
      if (this.#hashes.get(entry) === hash && matches(entry)) return entry;
    }
    return null;
  }

  /** Adds an entry that is in no chain yet. */
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

  /** Adds a chain, and moves to it the entries of an existing chain whose hashes have one more bit set. */
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
