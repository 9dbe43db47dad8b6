import type { Accounts } from "../../domain/account/accounts.ts";
import type { AccountId } from "../../domain/ids.ts";

/** The name of a client's request: ids of JSON-RPC are unique only within a session. */
export interface CallName {
  readonly accountId: AccountId;
  /** as the client sent it; null for a client without sessions */
  readonly session: string | null;
  /** null: it cannot be cancelled by name */
  readonly id: string | number | null;
}

/** A request in progress. Its disposal, which is idempotent, ends the work for it. */
export interface Call extends Disposable {
  /** aborted when the client cancels the request, leaves, or ends its session */
  readonly left: AbortController;
}

interface Entry {
  readonly name: CallName;
  readonly left: AbortController;
  readonly place: Disposable;
}

/**
 * The requests in progress. A session is only a name that its requests share. Nothing is stored between requests, so
 * sessions do not expire, need no memory, and survive a restart of the service.
 */
export class Calls {
  readonly #accounts: Accounts;
  readonly #entries = new Set<Entry>();
  /** the entries that can be cancelled by name */
  readonly #named = new Map<string, Entry>();

  constructor(accounts: Accounts) {
    this.#accounts = accounts;
  }

  /** @throws ApiError `too_many_requests` */
  begin(name: CallName): Call {
    const place = this.#accounts.take(name.accountId, "calls");
    const entry = { name, left: new AbortController(), place };
    this.#entries.add(entry);
    if (name.id !== null) this.#named.set(keyOf(name), entry);
    return { left: entry.left, [Symbol.dispose]: () => this.#end(entry) };
  }

  /** Cancels a request; does nothing for an unknown name. */
  cancel(name: CallName): void {
    this.#named.get(keyOf(name))?.left.abort(cancelled());
  }

  /** Cancels all requests of a session. */
  endSession(accountId: AccountId, session: string): void {
    for (const { name, left } of this.#entries) {
      if (name.accountId === accountId && name.session === session) left.abort(cancelled());
    }
  }

  #end(entry: Entry): void {
    if (!this.#entries.delete(entry)) return;
    entry.place[Symbol.dispose]();
    const key = keyOf(entry.name);
    // If a client uses an id twice, the name belongs to the later request.
    if (this.#named.get(key) === entry) this.#named.delete(key);
    entry.left.abort(cancelled());
  }
}

function keyOf({ accountId, session, id }: CallName): string {
  return JSON.stringify([accountId, session, id]);
}

function cancelled(): Error {
  return new DOMException("the client no longer waits", "AbortError");
}
