import { GUEST_NAME_BYTES_MAX } from "../../domain/guest-path.ts";
import { Column, HashChains } from "./columns.ts";

/** Names lie in blocks of this many `bytes`, none in two of them. */
const BLOCK_BYTES = 65_536;
const NONE = 0xffff_ffff;

/**
 * The names of a tree, packed: about 25 bytes an entry beside its name. An entry is a number, in the order of
 * insertion; the first one is the root, which has no name. It answers "is there a child of this name" in
 * constant time, which finds the parents of paths and duplicates. No call takes longer the more entries there are.
 */
export class NameTable {
  #count = 1;
  #namesBytes = 0;
  readonly #blocks: Buffer[] = [];
  /** of the last block */
  #usedBytes = BLOCK_BYTES;
  /** where a name is: number of its block, and place in it */
  readonly #starts = new Column(Uint32Array);
  readonly #lengths = new Column(Uint8Array);
  readonly #parents = new Column(Uint32Array);
  readonly #depths = new Column(Uint16Array);
  readonly #chains = new HashChains();
  /** secret, so that a guest cannot choose names that collide */
  readonly #seed = crypto.getRandomValues(new Uint32Array(1))[0] as number;

  constructor() {
    this.#parents.set(0, NONE);
  }

  get count(): number {
    return this.#count;
  }

  /** of all names together */
  get namesBytes(): number {
    return this.#namesBytes;
  }

  /** memory that is taken, in `bytes` */
  get heldBytes(): number {
    const columns = [this.#starts, this.#lengths, this.#parents, this.#depths, this.#chains];
    return columns.reduce((bytes, { heldBytes }) => bytes + heldBytes, this.#blocks.length * BLOCK_BYTES);
  }

  parentOf(entry: number): number {
    return this.#parents.get(entry);
  }

  /** Directories above the entry, the root not counted; zero for the root and its children. */
  depthOf(entry: number): number {
    return this.#depths.get(entry);
  }

  /** The child of `parent` whose name is `bytes[start, end)`, or null. */
  find(parent: number, bytes: Buffer, start: number, end: number): number | null {
    return this.#find(this.#hash(parent, bytes, start, end), parent, bytes, start, end);
  }

  /** Adds a child, or returns null when there is one of that name. The name has 1 to 255 bytes. */
  add(parent: number, bytes: Buffer, start: number, end: number): number | null {
    const length = end - start;
    if (length < 1 || length > GUEST_NAME_BYTES_MAX) throw new RangeError(`name of ${length} bytes`);
    const hash = this.#hash(parent, bytes, start, end);
    if (this.#find(hash, parent, bytes, start, end) !== null) return null;
    const entry = this.#count++;
    this.#starts.set(entry, this.#keep(bytes, start, end));
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

  /** Copies a name, and says where it is. */
  #keep(bytes: Buffer, start: number, end: number): number {
    if (this.#usedBytes + end - start > BLOCK_BYTES) {
      this.#blocks.push(Buffer.allocUnsafeSlow(BLOCK_BYTES));
      this.#usedBytes = 0;
    }
    const place = (this.#blocks.length - 1) * BLOCK_BYTES + this.#usedBytes;
    bytes.copy(this.#blocks.at(-1) as Buffer, this.#usedBytes, start, end);
    this.#usedBytes += end - start;
    return place;
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
    return (hash ^ (hash >>> 16)) >>> 0;
  }
}
