/** Waiting items by owner: owners take turns, and the items of one owner are served in order. */
export class RoundRobin<T> {
  /** queues in the order of their owners' turns; none is empty */
  readonly #queues = new Map<unknown, Set<T>>();

  get isEmpty(): boolean {
    return this.#queues.size === 0;
  }

  /** @param item must not be waiting already */
  add(owner: unknown, item: T): void {
    const queue = this.#queues.get(owner);
    if (queue === undefined) this.#queues.set(owner, new Set([item]));
    else queue.add(item);
  }

  /** Returns false when the item is not waiting. */
  delete(owner: unknown, item: T): boolean {
    const queue = this.#queues.get(owner);
    if (queue?.delete(item) !== true) return false;
    if (queue.size === 0) this.#queues.delete(owner);
    return true;
  }

  /** Removes and returns the next item; null when none waits. */
  take(): T | null {
    for (const [owner, queue] of this.#queues) {
      this.#queues.delete(owner);
      for (const item of queue) {
        queue.delete(item);
        if (queue.size > 0) this.#queues.set(owner, queue);
        return item;
      }
    }
    return null;
  }
}
