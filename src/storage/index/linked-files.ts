import { Column, HashChains } from "./columns.ts";

/** Fingerprints of files with several names, by inode: 45 bytes for each. */
export class LinkedFiles {
  readonly #inodes = new Column(Float64Array);
  readonly #fingerprints = new Column(Float64Array);
  readonly #chains = new HashChains();
  /** secret, so that a guest cannot choose colliding inodes */
  readonly #seeds = crypto.getRandomValues(new Uint32Array(2));
  #count = 0;

  /** memory use, in `bytes` */
  get heldBytes(): number {
    return this.#inodes.heldBytes + this.#fingerprints.heldBytes + this.#chains.heldBytes;
  }

  /** The fingerprint of an inode, or null. */
  find(inode: number): number | null {
    const entryNumber = this.#chains.find(this.#hash(inode), (entry) => this.#inodes.get(entry) === inode);
    return entryNumber === null ? null : this.#fingerprints.get(entryNumber);
  }

  /** Adds an inode, which must be new. */
  add(inode: number, fingerprint: number): void {
    const entry = ++this.#count;
    this.#inodes.set(entry, inode);
    this.#fingerprints.set(entry, fingerprint);
    this.#chains.add(entry, this.#hash(inode));
  }

  #hash(inode: number): number {
    const [low, high] = this.#seeds as unknown as [number, number];
    let hash = Math.imul(low ^ (inode % 0x1_0000_0000), 0x9e37_79b1);
    hash = Math.imul(hash ^ (hash >>> 15) ^ high ^ Math.floor(inode / 0x1_0000_0000), 0x85eb_ca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2_ae35);
    return (hash ^ (hash >>> 16)) >>> 0;
  }
}
