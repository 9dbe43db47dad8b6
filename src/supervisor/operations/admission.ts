/** Whether new work may begin. While it is held, work that was submitted waits. */
export class Admission {
  #holdersCount = 0;
  #opened = Promise.withResolvers<void>();

  constructor() {
    this.#opened.resolve();
  }

  get isHeld(): boolean {
    return this.#holdersCount > 0;
  }

  /** Resolves when there is no hold. */
  async opened(): Promise<void> {
    while (this.isHeld) await this.#opened.promise;
  }

  /** Lets no work begin until the disposal of this and of all other holds. */
  hold(): Disposable {
    if (!this.isHeld) this.#opened = Promise.withResolvers();
    this.#holdersCount += 1;
    let isHolding = true;
    return {
      [Symbol.dispose]: () => {
        if (!isHolding) return;
        isHolding = false;
        this.#holdersCount -= 1;
        if (!this.isHeld) this.#opened.resolve();
      },
    };
  }
}
