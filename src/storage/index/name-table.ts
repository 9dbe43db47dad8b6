import { GUEST_NAME_BYTES_MAX } from "../../domain/guest-path.ts";

/** Enough for a small layer; everything doubles from there. */
const INITIAL_ENTRIES_COUNT = 1024;
const INITIAL_NAMES_BYTES = 16_384;
const NONE = 0xffff_ffff;

/**
 * The names of a tree, packed: about 40 bytes an entry beside its name. An entry is a number, in the order of
 * insertion; the first one is the root, which has no name. It answers "is there a child of this name" in
 * constant time, which finds the parents of paths and duplicates.
 */
export class NameTable {
  #count = 0;
  #namesBytes = 0;
  #names = Buffer.alloc(INITIAL_NAMES_BYTES);
  #nameStarts = new Uint32Array(INITIAL_ENTRIES_COUNT);
  #nameLengths = new Uint8Array(INITIAL_ENTRIES_COUNT);
  #parents = new Uint32Array(INITIAL_ENTRIES_COUNT);
  #depths = new Uint16Array(INITIAL_ENTRIES_COUNT);
  /** open addressing: entry + 1, or zero where free; never more than half full */
  #slots = new Uint32Array(2 * INITIAL_ENTRIES_COUNT);
  /** secret, so that a guest cannot choose names that collide */
  readonly #seed = crypto.getRandomValues(new Uint32Array(1))[0] as number;

  constructor() {
    this.#parents[0] = NONE;
    this.#count = 1;
  }

  get count(): number {
    return this.#count;
  }

  /** of all names together */
  get namesBytes(): number {
    return this.#namesBytes;
  }

  parentOf(entry: number): number {
    return this.#parents[entry] as number;
  }

  /** Directories above the entry, the root not counted; zero for the root and its children. */
  depthOf(entry: number): number {
    return this.#depths[entry] as number;
  }

  /** The child of `parent` whose name is `bytes[start, end)`, or null. */
  find(parent: number, bytes: Buffer, start: number, end: number): number | null {
    const slot = this.#slotOf(parent, bytes, start, end);
    const found = this.#slots[slot] as number;
    return found === 0 ? null : found - 1;
  }

  /** Adds a child, or returns null when there is one of that name. The name has 1 to 255 bytes. */
  add(parent: number, bytes: Buffer, start: number, end: number): number | null {
    const length = end - start;
    if (length < 1 || length > GUEST_NAME_BYTES_MAX) throw new RangeError(`name of ${length} bytes`);
    this.#reserve(length);
    const slot = this.#slotOf(parent, bytes, start, end);
    if (this.#slots[slot] !== 0) return null;
    const entry = this.#count++;
    bytes.copy(this.#names, this.#namesBytes, start, end);
    this.#nameStarts[entry] = this.#namesBytes;
    this.#nameLengths[entry] = length;
    this.#namesBytes += length;
    this.#parents[entry] = parent;
    this.#depths[entry] = parent === 0 ? 0 : (this.#depths[parent] as number) + 1;
    this.#slots[slot] = entry + 1;
    return entry;
  }

  /** Orders by parent, then by the bytes of the name. */
  readonly compare = (a: number, b: number): number => {
    const byParent = (this.#parents[a] as number) - (this.#parents[b] as number);
    if (byParent !== 0) return byParent;
    const names = this.#names;
    const aStart = this.#nameStarts[a] as number;
    const bStart = this.#nameStarts[b] as number;
    const aLength = this.#nameLengths[a] as number;
    const bLength = this.#nameLengths[b] as number;
    const common = Math.min(aLength, bLength);
    for (let at = 0; at < common; at++) {
      const difference = (names[aStart + at] as number) - (names[bStart + at] as number);
      if (difference !== 0) return difference;
    }
    return aLength - bLength;
  };

  /** The slot that holds the child, or the free one where it belongs. */
  #slotOf(parent: number, bytes: Buffer, start: number, end: number): number {
    const mask = this.#slots.length - 1;
    let slot = this.#hash(parent, bytes, start, end) & mask;
    for (;;) {
      const found = this.#slots[slot] as number;
      if (found === 0 || this.#isChild(found - 1, parent, bytes, start, end)) return slot;
      slot = (slot + 1) & mask;
    }
  }

  #isChild(entry: number, parent: number, bytes: Buffer, start: number, end: number): boolean {
    const length = end - start;
    if (this.#parents[entry] !== parent || this.#nameLengths[entry] !== length) return false;
    const nameStart = this.#nameStarts[entry] as number;
    for (let at = 0; at < length; at++) {
      if (this.#names[nameStart + at] !== bytes[start + at]) return false;
    }
    return true;
  }

  /** Mixes every byte through the whole word, so that the seed keeps collisions unpredictable. */
  #hash(parent: number, bytes: Buffer, start: number, end: number): number {
    let hash = Math.imul(this.#seed ^ parent, 0x9e37_79b1);
    hash ^= hash >>> 15;
    for (let at = start; at < end; at++) {
      hash = Math.imul(hash ^ (bytes[at] as number), 0x85eb_ca6b);
      hash ^= hash >>> 13;
    }
    hash = Math.imul(hash, 0xc2b2_ae35);
    return hash ^ (hash >>> 16);
  }

  #reserve(nameBytes: number): void {
    if (this.#namesBytes + nameBytes > this.#names.length) {
      const names = Buffer.alloc(2 * this.#names.length);
      this.#names.copy(names, 0, 0, this.#namesBytes);
      this.#names = names;
    }
    if (this.#count === this.#parents.length) {
      this.#nameStarts = doubled(this.#nameStarts, Uint32Array);
      this.#nameLengths = doubled(this.#nameLengths, Uint8Array);
      this.#parents = doubled(this.#parents, Uint32Array);
      this.#depths = doubled(this.#depths, Uint16Array);
      this.#rehash(2 * this.#slots.length);
    }
  }

  #rehash(length: number): void {
    this.#slots = new Uint32Array(length);
    for (let entry = 1; entry < this.#count; entry++) {
      const start = this.#nameStarts[entry] as number;
      const end = start + (this.#nameLengths[entry] as number);
      this.#slots[this.#slotOf(this.#parents[entry] as number, this.#names, start, end)] = entry + 1;
    }
  }
}

type NumberArray = Uint8Array | Uint16Array | Uint32Array | Float64Array;

/** A copy of twice the length. */
export function doubled<T extends NumberArray>(array: T, type: new (length: number) => T): T {
  const copy = new type(2 * array.length);
  copy.set(array);
  return copy;
}
