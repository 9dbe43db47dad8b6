/** Bytes that the other side of a connection has room for: a window, less the bytes that were sent and not consumed. */
export class ByteCredit {
  #windowBytes: number;
  #sentBytes = 0;
  #takenBytes = 0;
  #isClosed = false;
  #wake: (() => void) | null = null;

  /** @param windowBytes 0: nothing may be sent before `open` */
  constructor(windowBytes = 0) {
    this.#windowBytes = windowBytes;
  }

  /** Sets the window. */
  open(windowBytes: number): void {
    this.#windowBytes = windowBytes;
    this.#wake?.();
  }

  /** Resolves to the number of bytes that may be sent, as soon as it is positive; 0: none ever again. One call at a time. */
  async some(): Promise<number> {
    while (!this.#isClosed && this.#roomBytes === 0) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return this.#isClosed ? 0 : this.#roomBytes;
  }

  spend(bytes: number): void {
    this.#sentBytes += bytes;
  }

  /**
   * Records the number of bytes that the other side has consumed so far. Returns false when that is impossible, and records nothing.
   */
  take(bytesSoFar: number): boolean {
    const isPossible =
      Number.isSafeInteger(bytesSoFar) && bytesSoFar >= this.#takenBytes && bytesSoFar <= this.#sentBytes;
    if (!isPossible) return false;
    this.#takenBytes = bytesSoFar;
    this.#wake?.();
    return true;
  }

  close(): void {
    this.#isClosed = true;
    this.#wake?.();
  }

  get #roomBytes(): number {
    return Math.max(0, this.#windowBytes - (this.#sentBytes - this.#takenBytes));
  }
}
