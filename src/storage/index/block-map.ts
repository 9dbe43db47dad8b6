/** Smallest block of the supported file systems, in `bytes`. Extents begin at multiples of it. */
export const BLOCK_BYTES = 1024;

const WORD_BITS = 32;
/** Words of one page of the map. A page stands for 64 MiB of the disk. */
const PAGE_WORDS = 2048;
const PAGE_BITS = PAGE_WORDS * WORD_BITS;
/** Marks a page whose blocks are all claimed. */
const FULL = "full";

/** The blocks of a disk that files have claimed. Pages that are completely claimed or free take almost no memory. */
export class BlockMap {
  readonly #pages = new Map<number, Uint32Array | typeof FULL>();
  #pagesCount = 0;

  /** approximate memory use, in `bytes` */
  get heldBytes(): number {
    return this.#pagesCount * PAGE_WORDS * Uint32Array.BYTES_PER_ELEMENT + this.#pages.size * 40;
  }

  /** Claims the blocks of the bytes `[start, end)`. Returns false when one of them is claimed already. */
  claim(start: number, end: number): boolean {
    const first = Math.floor(start / BLOCK_BYTES);
    const last = Math.ceil(end / BLOCK_BYTES) - 1;
    for (let block = first; block <= last; ) {
      const number = Math.floor(block / PAGE_BITS);
      const pageStart = number * PAGE_BITS;
      const pageLast = Math.min(last, pageStart + PAGE_BITS - 1);
      if (!this.#claimIn(number, block - pageStart, pageLast - pageStart)) return false;
      block = pageLast + 1;
    }
    return true;
  }

  /** Claims the bits `first` to `last` of a page. */
  #claimIn(number: number, first: number, last: number): boolean {
    const existing = this.#pages.get(number);
    if (existing === FULL) return false;
    if (first === 0 && last === PAGE_BITS - 1) {
      if (existing !== undefined) return false;
      this.#pages.set(number, FULL);
      return true;
    }
    const page = existing ?? this.#newPage(number);
    const firstWord = Math.floor(first / WORD_BITS);
    const lastWord = Math.floor(last / WORD_BITS);
    for (let word = firstWord; word <= lastWord; word++) {
      const low = word === firstWord ? first % WORD_BITS : 0;
      const high = word === lastWord ? last % WORD_BITS : WORD_BITS - 1;
      const mask = (0xffff_ffff >>> (WORD_BITS - 1 - high + low)) << low;
      if (((page[word] as number) & mask) !== 0) return false;
      page[word] = (page[word] as number) | mask;
    }
    return true;
  }

  #newPage(number: number): Uint32Array {
    const page = new Uint32Array(PAGE_WORDS);
    this.#pages.set(number, page);
    this.#pagesCount++;
    return page;
  }
}
