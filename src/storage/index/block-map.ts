/** Smallest block of the file systems that a layer may have, in `bytes`: extents begin at a multiple of it. */
export const BLOCK_BYTES = 1024;

const WORD_BITS = 32;
/** Words of one page of the map, which stands for 256 MiB of the disk. */
const PAGE_WORDS = 8192;

/** Which blocks of a disk belong to a file already. Pages that nobody claimed take no memory. */
export class BlockMap {
  readonly #pages = new Map<number, Uint32Array>();

  /** Claims the blocks of `[start, end)` in bytes; false when one of them was claimed before. */
  claim(start: number, end: number): boolean {
    const first = Math.floor(start / BLOCK_BYTES);
    const last = Math.ceil(end / BLOCK_BYTES) - 1;
    const firstWord = Math.floor(first / WORD_BITS);
    const lastWord = Math.floor(last / WORD_BITS);
    let page = this.#page(firstWord);
    for (let word = firstWord; word <= lastWord; word++) {
      if (word % PAGE_WORDS === 0) page = this.#page(word);
      const low = word === firstWord ? first % WORD_BITS : 0;
      const high = word === lastWord ? last % WORD_BITS : WORD_BITS - 1;
      const mask = (0xffff_ffff >>> (WORD_BITS - 1 - high + low)) << low;
      const at = word % PAGE_WORDS;
      if (((page[at] as number) & mask) !== 0) return false;
      page[at] = (page[at] as number) | mask;
    }
    return true;
  }

  #page(word: number): Uint32Array {
    const number = Math.floor(word / PAGE_WORDS);
    let page = this.#pages.get(number);
    if (page === undefined) {
      page = new Uint32Array(PAGE_WORDS);
      this.#pages.set(number, page);
    }
    return page;
  }
}
