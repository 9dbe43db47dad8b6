/** Queues the chunks of a stream for its one reader, which may start late and may pause. Delivers the end once, at last. */
export class Inbox {
  readonly #chunks: Uint8Array[] = [];
  #bytes = 0;
  #handler: ((chunk: Uint8Array | null) => void) | null = null;
  #paused = false;
  #ended = false;
  #endDelivered = false;

  /** size of the queued chunks, in `bytes` */
  get byteLength(): number {
    return this.#bytes;
  }

  /** number of queued chunks */
  get length(): number {
    return this.#chunks.length;
  }

  /** True while chunks go to the reader at once. */
  get isFlowing(): boolean {
    return this.#handler !== null && !this.#paused;
  }

  push(chunk: Uint8Array): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.byteLength;
    this.#deliver();
  }

  /** Ends the stream; later calls change nothing. */
  end(): void {
    this.#ended = true;
    this.#deliver();
  }

  /** @param handler gets the chunks, then `null` for the end; it may pause the inbox */
  onData(handler: (chunk: Uint8Array | null) => void): void {
    this.#handler = handler;
    this.#deliver();
  }

  pause(): void {
    this.#paused = true;
  }

  resume(): void {
    this.#paused = false;
    this.#deliver();
  }

  #deliver(): void {
    while (this.#handler !== null && !this.#paused) {
      const chunk = this.#chunks.shift();
      if (chunk === undefined) {
        if (!this.#ended || this.#endDelivered) return;
        this.#endDelivered = true;
        this.#handler(null);
        return;
      }
      this.#bytes -= chunk.byteLength;
      this.#handler(chunk);
    }
  }
}
