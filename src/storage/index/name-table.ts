import { GUEST_NAME_BYTES_MAX } from "../../domain/tree/guest-path.ts";
import { Column, HashChains } from "./columns.ts";

/** Names are stored in blocks of this many `bytes`; no name spans two blocks. */
const BLOCK_BYTES = 65_536;
const NONE = 0xffff_ffff;

/**
 * The names of a tree, packed: each entry takes about 25 bytes and its name. Entries are numbered in the order of
 * insertion; entry 0 is the root, which has no name. Finding a child by its name takes constant time, which finds the
 * parent of a path and detects duplicates. No call gets slower with the number of entries.
 */
export class NameTable {
  #count = 1;
  #namesBytes = 0;
  readonly #blocks: Buffer[] = [];
  /** used bytes of the last block */
  #usedBytes = BLOCK_BYTES;
  /** position of a name: number of its block times BLOCK_BYTES, plus its offset in the block */
  readonly #starts = new Column(Uint32Array);
  readonly #lengths = new Column(Uint8Array);
  readonly #parents = new Column(Uint32Array);
  readonly #depths = new Column(Uint16Array);
  readonly #chains = new HashChains();
  /** secret, so that a guest cannot choose colliding names */
  readonly #seed = crypto.getRandomValues(new Uint32Array(1))[0] as number;

  constructor() {
    this.#parents.set(0, NONE);
  }

  get count(): number {
    return this.#count;
  }

  /** length of all names together, in `bytes` */
  get namesBytes(): number {
    return this.#namesBytes;
  }

  /** memory use, in `bytes` */
  get heldBytes(): number {
    const columns = [this.#starts, this.#lengths, this.#parents, this.#depths, this.#chains];
    return columns.reduce((bytes, { heldBytes }) => bytes + heldBytes, this.#blocks.length * BLOCK_BYTES);
  }

  parentOf(entry: number): number {
    return this.#parents.get(entry);
  }

  /** Number of directories above the entry, without the root; zero for the root and its children. */
  depthOf(entry: number): number {
    return this.#depths.get(entry);
  }

  /** The child of `parent` named `bytes[start, end)`, or null. */
  find(parent: number, bytes: Buffer, start: number, end: number): number | null {
    return this.#find(this.#hash(parent, bytes, start, end), parent, bytes, start, end);
  }

  /** Adds a child; returns null when the name exists. @throws RangeError unless the name has 1 to 255 bytes */
  add(parent: number, bytes: Buffer, start: number, end: number): number | null {
    const length = end - start;
    if (length < 1 || length > GUEST_NAME_BYTES_MAX) throw new RangeError(`name of ${length} bytes`);
    const hash = this.#hash(parent, bytes, start, end);
    if (this.#find(hash, parent, bytes, start, end) !== null) return null;
    const entry = this.#count++;
    this.#starts.set(entry, this.#store(bytes, start, end));
    this.#lengths.set(entry, length);
    this.#namesBytes += length;
    this.#parents.set(entry, parent);
    this.#depths.set(entry, parent === 0 ? 0 : this.#depths.get(parent) + 1);
    this.#chains.add(entry, hash);
    return entry;
  }

  /** Orders by parent, then by the bytes of the name. */
  readonly compare = (a: number, b: number): number => {
    const byParent = this.#parents.get(a) - this.#parents.get(b);
    if (byParent !== 0) return byParent;
    const aBlock = this.#blockOf(a);
    const bBlock = this.#blockOf(b);
    const aStart = this.#starts.get(a) % BLOCK_BYTES;
    const bStart = this.#starts.get(b) % BLOCK_BYTES;
    const aLength = this.#lengths.get(a);
    const bLength = this.#lengths.get(b);
    const common = Math.min(aLength, bLength);
    for (let at = 0; at < common; at++) {
      const difference = (aBlock[aStart + at] as number) - (bBlock[bStart + at] as number);
      if (difference !== 0) return difference;
    }
    return aLength - bLength;
  };

  #find(hash: number, parent: number, bytes: Buffer, start: number, end: number): number | null {
    return this.#chains.find(hash, (entry) => this.#isChild(entry, parent, bytes, start, end));
  }

  #isChild(entry: number, parent: number, bytes: Buffer, start: number, end: number): boolean {
    const length = end - start;
    if (this.#parents.get(entry) !== parent || this.#lengths.get(entry) !== length) return false;
    const block = this.#blockOf(entry);
    const nameStart = this.#starts.get(entry) % BLOCK_BYTES;
    for (let at = 0; at < length; at++) {
      if (block[nameStart + at] !== bytes[start + at]) return false;
    }
    return true;
  }

  #blockOf(entry: number): Buffer {
    return this.#blocks[Math.floor(this.#starts.get(entry) / BLOCK_BYTES)] as Buffer;
  }

  /** Copies a name and returns its position. */
  #store(bytes: Buffer, start: number, end: number): number {
    if (this.#usedBytes + end - start > BLOCK_BYTES) {
      this.#blocks.push(Buffer.allocUnsafeSlow(BLOCK_BYTES));
      this.#usedBytes = 0;
    }
    const position = (this.#blocks.length - 1) * BLOCK_BYTES + this.#usedBytes;
    bytes.copy(this.#blocks.at(-1) as Buffer, this.#usedBytes, start, end);
    this.#usedBytes += end - start;
    return position;
  }

  /** Mixes every byte into all bits, so that collisions cannot be predicted without the seed. */
  #hash(parent: number, bytes: Buffer, start: number, end: number): number {
    let hash = Math.imul(this.#seed ^ parent, 0x9e37_79b1);
    hash ^= hash >>> 15;
    for (let at = start; at < end; at++) {
      hash = Math.imul(hash ^ (bytes[at] as number), 0x85eb_ca6b);
      hash ^= hash >>> 13;
    }
    hash = Math.imul(hash, 0xc2b2_ae35);
    return (hash ^ (hash >>> 16)) >>> 0;
  }
}
