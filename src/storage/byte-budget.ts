/** A memory budget that several users share. There is no wait: a user that gets nothing must work without. */
export class ByteBudget {
  readonly #bytesMax: number;
  #taken = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** Takes bytes; returns false, and takes nothing, when not enough is left. */
  take(bytes: number): boolean {
    if (this.#taken + bytes > this.#bytesMax) return false;
    this.#taken += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#taken -= bytes;
  }
}
