import type { AccountId, ImageId, OperationId } from "../domain/ids.ts";
import type { OperationChanges } from "./operations/changes.ts";

/** An object that changed. Its row may already be gone. `image`: the image was made, or its tags changed. */
export type AccountChange =
  | { readonly type: "operation"; readonly id: OperationId }
  | { readonly type: "image"; readonly id: ImageId }
  | { readonly type: "deleted"; readonly id: ImageId };

export interface ChangeListener {
  changed(change: AccountChange): void;
  /** no change will follow: the service stops */
  stopped(): void;
}

/** Reports the changes of an account to its listeners. It costs nothing without listeners. Disposal stops the listeners. */
export class AccountChanges implements Disposable {
  readonly #listeners = new Map<AccountId, Set<ChangeListener>>();
  #isStopped = false;

  /** Reports a change, after the commit. */
  report(accountId: AccountId, change: AccountChange): void {
    for (const listener of this.#listeners.get(accountId) ?? []) listener.changed(change);
  }

  /** Reports the operations in `changes`, until disposal. */
  follow(changes: OperationChanges): Disposable {
    return changes.subscribe((change) => {
      const { accountId, id } = change.operation;
      this.report(accountId, { type: "operation", id });
      if (change.type === "ended" && change.untagged !== undefined)
        this.report(accountId, { type: "image", id: change.untagged });
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
