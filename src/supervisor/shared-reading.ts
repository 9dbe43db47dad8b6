/** A value that is slow to read: callers share one reading at a time, and its result for a while. */
export class SharedReading<T> {
  readonly #read: () => Promise<T>;
  readonly #ageMsMax: number;
  #last: { readonly value: T; readonly readAt: number } | null = null;
  #reading: Promise<T> | null = null;

  /** @param ageMsMax how long a result is good for, in `milliseconds`, from the end of its reading */
  constructor(read: () => Promise<T>, ageMsMax: number) {
    this.#read = read;
    this.#ageMsMax = ageMsMax;
  }

  /** @throws as the reading does; a failure is not cached */
  async get(): Promise<T> {
    if (this.#last !== null && performance.now() - this.#last.readAt <= this.#ageMsMax) return this.#last.value;
    this.#reading ??= this.#start();
    return await this.#reading;
  }

  /** Makes the next caller read the value again. */
  forget(): void {
    this.#last = null;
    this.#reading = null;
  }

  #start(): Promise<T> {
    const reading: Promise<T> = this.#read().then(
      (value) => {
        if (this.#reading === reading) this.#last = { value, readAt: performance.now() };
        if (this.#reading === reading) this.#reading = null;
        return value;
      },
      (error: unknown) => {
        if (this.#reading === reading) this.#reading = null;
        throw error;
      },
    );
    return reading;
  }
}
