/** Counts the users of something that one owner gives up. It is released when the owner and the last user have left. */
export class UseCount {
  /** resolves when the owner and the last user have left */
  readonly released: Promise<void>;
  readonly #release: () => void;
  #usersCount = 0;
  #isOwned = true;

  constructor() {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.released = promise;
    this.#release = resolve;
  }

  get isInUse(): boolean {
    return this.#usersCount > 0;
  }

  /** Counts a user until the result is disposed of, once. */
  use(): Disposable {
    this.#usersCount += 1;
    return {
      [Symbol.dispose]: () => {
        this.#usersCount -= 1;
        this.#check();
      },
    };
  }

  /** To be called when the owner leaves; later calls change nothing. */
  leave(): void {
    this.#isOwned = false;
    this.#check();
  }

  #check(): void {
    if (!this.#isOwned && this.#usersCount === 0) this.#release();
  }
}
