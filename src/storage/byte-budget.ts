/** Bytes of memory that several share. Whoever finds none left does without: nobody waits. */
export class ByteBudget {
  readonly #bytesMax: number;
  #taken = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** what is taken now, in `bytes` */
  get taken(): number {
    return this.#taken;
  }

  /** False, and nothing is taken, when there is not as much left. */
  take(bytes: number): boolean {
    if (this.#taken + bytes > this.#bytesMax) return false;
    this.#taken += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#taken -= bytes;
  }
}
