import type { SandboxId } from "../../domain/ids.ts";

/** The clients that wait for starts of sandboxes. A start of which none of them learns is in vain. */
export class WaitingClients {
  readonly #waiting = new Map<SandboxId, { count: number; isKnown: boolean }>();

  /** Adds a client whose request starts the sandbox. */
  begin(id: SandboxId): void {
    if (!this.join(id)) this.#waiting.set(id, { count: 1, isKnown: false });
  }

  /** Adds a further client; nothing when no client waits for the sandbox any more. */
  join(id: SandboxId): boolean {
    const clients = this.#waiting.get(id);
    if (clients !== undefined) clients.count += 1;
    return clients !== undefined;
  }

  /** Removes a client that was added, and knows the sandbox now. Returns whether it is the first one. */
  answer(id: SandboxId): boolean {
    const clients = this.#waiting.get(id);
    if (clients === undefined) return false;
    const isFirst = !clients.isKnown;
    clients.isKnown = true;
    this.#remove(id, clients);
    return isFirst;
  }

  /** Removes a client that was added, and gets no sandbox. Returns whether it was the last one, and none knows the sandbox. */
  leave(id: SandboxId): boolean {
    const clients = this.#waiting.get(id);
    return clients !== undefined && this.#remove(id, clients) && !clients.isKnown;
  }

  /** Returns whether it was the last one. */
  #remove(id: SandboxId, clients: { count: number }): boolean {
    clients.count -= 1;
    if (clients.count === 0) this.#waiting.delete(id);
    return clients.count === 0;
  }
}
