import type { SandboxId } from "../../domain/ids.ts";

/** The clients that wait for new sandboxes. A sandbox that none of them learns of would live unknown until its deadline. */
export class WaitingClients {
  readonly #waiting = new Map<SandboxId, { count: number; isKnown: boolean }>();

  /** Adds the client whose request makes the sandbox. */
  begin(id: SandboxId): void {
    this.#waiting.set(id, { count: 1, isKnown: false });
  }

  /** Adds a client that repeats the request; nothing when no client waits for the sandbox any more. */
  join(id: SandboxId): boolean {
    const clients = this.#waiting.get(id);
    if (clients !== undefined) clients.count += 1;
    return clients !== undefined;
  }

  /**
   * Removes a client that was added.
   * @param isAnswered true: it knows the sandbox now
   * @returns whether it was the last one, and no client knows the sandbox
   */
  leave(id: SandboxId, isAnswered: boolean): boolean {
    const clients = this.#waiting.get(id);
    if (clients === undefined) return false;
    clients.count -= 1;
    clients.isKnown ||= isAnswered;
    if (clients.count > 0) return false;
    this.#waiting.delete(id);
    return !clients.isKnown;
  }
}
