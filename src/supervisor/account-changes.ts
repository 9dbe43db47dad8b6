import type { AccountId, ImageId, OperationId } from "../domain/ids.ts";
import type { OperationChanges } from "./operations/changes.ts";

/** What has changed: its row is to be read, and may be gone already. An image that changed was made, or its tags were changed. */
export type AccountChange =
  | { readonly type: "operation"; readonly id: OperationId }
  | { readonly type: "image"; readonly id: ImageId }
  | { readonly type: "deleted"; readonly id: ImageId };

export interface ChangeListener {
  changed(change: AccountChange): void;
  /** no change will follow: the service stops */
  stopped(): void;
}

/** Tells listeners what changes in their account. It costs nothing while nobody listens. Disposal stops the listeners. */
export class AccountChanges implements Disposable {
  readonly #listeners = new Map<AccountId, Set<ChangeListener>>();
  #isStopped = false;

  /** Tells of a change, after the commit. */
  tell(accountId: AccountId, change: AccountChange): void {
    for (const listener of this.#listeners.get(accountId) ?? []) listener.changed(change);
  }

  /** Tells of the operations in `changes`, until disposal. */
  follow(changes: OperationChanges): Disposable {
    return changes.subscribe((change) => {
      const { accountId, id } = change.operation;
      this.tell(accountId, { type: "operation", id });
      if (change.type === "ended" && change.untagged !== undefined)
        this.tell(accountId, { type: "image", id: change.untagged });
    });
  }

  /** Adds a listener, until disposal. It is called synchronously, and must not throw. */
  listen(accountId: AccountId, listener: ChangeListener): Disposable {
    const listeners = this.#listeners.get(accountId) ?? new Set();
    this.#listeners.set(accountId, listeners.add(listener));
    if (this.#isStopped) listener.stopped();
    return {
      [Symbol.dispose]: () => {
        if (listeners.delete(listener) && listeners.size === 0) this.#listeners.delete(accountId);
      },
    };
  }

  [Symbol.dispose](): void {
    this.#isStopped = true;
    for (const listeners of this.#listeners.values()) for (const listener of listeners) listener.stopped();
  }
}
