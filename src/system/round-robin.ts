/** Who waits, by owner: owners take turns, and among those of one owner, who came first is first. */
export class RoundRobin<T> {
  /** the owner whose turn is next first; none is empty */
  readonly #queues = new Map<unknown, Set<T>>();

  get isEmpty(): boolean {
    return this.#queues.size === 0;
  }

  countOf(owner: unknown): number {
    return this.#queues.get(owner)?.size ?? 0;
  }

  /** @param item no other one that waits is the same */
  add(owner: unknown, item: T): void {
    const queue = this.#queues.get(owner);
    if (queue === undefined) this.#queues.set(owner, new Set([item]));
    else queue.add(item);
  }

  /** False when it does not wait. */
  delete(owner: unknown, item: T): boolean {
    const queue = this.#queues.get(owner);
    if (queue?.delete(item) !== true) return false;
    if (queue.size === 0) this.#queues.delete(owner);
    return true;
  }

  /** The next one, which then waits no more; null when nobody waits. */
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
